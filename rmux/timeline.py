"""Read recorded events as time lines: who held which device when, and what it cost.

Pure; the same for a live run, an emulated one and the simulator. All instants are `at_s`, the
host's boot-time clock in seconds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmux.events import EventType, PhaseEvent
from rmux.ids import JobId
from rmux.job import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One device held by one phase, from grant to proven release."""

    device: str
    job_id: JobId
    iteration: int
    phase: Phase
    start_s: float
    end_s: float | None
    """None while it lasts."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.end_s is None else self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, 99th percentile, extremes and count of a sample."""

    n: int
    p50: float
    p99: float
    min: float
    max: float


def holds(events: Iterable[PhaseEvent]) -> tuple[Hold, ...]:
    """Grant to release per device, in order of grant; a hold never released stays open."""
    open_holds: dict[str, PhaseEvent] = {}
    found: list[Hold] = []
    for event in events:
        if event.device is None:
            continue
        if event.type is EventType.GRANT:
            open_holds[event.device] = event
        elif event.type is EventType.RELEASED and event.device in open_holds:
            grant = open_holds[event.device]
            if _order(grant) == _order(event):
                del open_holds[event.device]
                found.append(_hold(grant, event.at_s))
    found += [_hold(grant, None) for grant in open_holds.values()]
    return tuple(sorted(found, key=lambda hold: hold.start_s))


def iteration_seconds(events: Iterable[PhaseEvent], *, skip: int = 1) -> dict[JobId, list[float]]:
    """Seconds between the ends of consecutive iterations per job, the first `skip` ends left out.

    The end of one iteration to the end of the next is a whole period, waits included.
    """
    ends: dict[JobId, list[float]] = defaultdict(list)
    for event in events:
        if event.type is EventType.ITERATION_END and event.job_id is not None:
            ends[event.job_id].append(event.at_s)
    return {
        job: [b - a for a, b in zip(at[skip - 1 :], at[skip:], strict=False)]
        for job, at in ends.items()
        if len(at) > skip
    }


def grant_latencies_s(events: Sequence[PhaseEvent]) -> list[float]:
    """Release of a device (or the job's readiness, if later) to the next user function running
    there, its wake apart. Phases that hold several devices count from the last of them."""
    released: dict[str, float] = {}
    freed_for: dict[tuple[JobId, int, Phase], float] = {}
    latencies = []
    for event in sorted(events, key=lambda event: event.at_s):
        if event.type is EventType.RELEASED and event.device is not None:
            released[event.device] = event.at_s
        elif event.type is EventType.GRANT and event.device in released:
            key = _phase_key(event)
            freed_for[key] = max(freed_for.get(key, 0.0), released[event.device])
        elif event.type is EventType.PHASE_START and _phase_key(event) in freed_for:
            begun_s = event.at_s - float(event.data.get("switch_s", 0.0))
            wanted_s = begun_s - float(event.data.get("wait_s", 0.0))
            latencies.append(begun_s - max(freed_for.pop(_phase_key(event)), wanted_s))
    return latencies


def phase_data(
    events: Iterable[PhaseEvent], key: str, *, type: EventType, phase: Phase | None = None
) -> dict[JobId, list[float]]:
    """Every recorded number `data[key]` per job, in order."""
    found: dict[JobId, list[float]] = defaultdict(list)
    for event in events:
        if event.type is type and event.job_id is not None and phase in (None, event.phase):
            value = event.data.get(key)
            if isinstance(value, int | float):
                found[event.job_id].append(float(value))
    return dict(found)


def busy_fraction(held: Iterable[Hold], *, since_s: float, until_s: float) -> dict[str, float]:
    """Share of the window each device was held, 0..1; the rest is its bubble."""
    busy_s: dict[str, float] = defaultdict(float)
    for hold in held:
        end_s = until_s if hold.end_s is None else hold.end_s
        busy_s[hold.device] += max(0.0, min(end_s, until_s) - max(hold.start_s, since_s))
    return {device: seconds / (until_s - since_s) for device, seconds in busy_s.items()}


def lanes(
    held: Iterable[Hold], labels: Mapping[JobId, str], *, since_s: float, until_s: float, width: int
) -> dict[str, str]:
    """One text lane per device: a job's letter where it holds the device, '·' where nobody does."""
    rows: dict[str, list[str]] = {}
    cell_s = (until_s - since_s) / width
    for hold in held:
        row = rows.setdefault(hold.device, ["·"] * width)
        end_s = until_s if hold.end_s is None else hold.end_s
        first = max(0, round((hold.start_s - since_s) / cell_s))
        last = min(width, round((end_s - since_s) / cell_s))
        label = labels.get(hold.job_id, "?")
        for cell in range(first, last):
            row[cell] = label
    return {device: "".join(row) for device, row in sorted(rows.items())}


def spread(sample: Sequence[float]) -> Spread | None:
    """None for an empty sample."""
    if not sample:
        return None
    ordered = sorted(sample)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return Spread(
        n=len(ordered), p50=statistics.median(ordered), p99=p99, min=ordered[0], max=ordered[-1]
    )


def _order(event: PhaseEvent) -> tuple[int, int]:
    return (int(event.data["epoch"]), int(event.data["seq"]))


def _phase_key(event: PhaseEvent) -> tuple[JobId, int, Phase]:
    return (JobId(event.job_id or ""), event.iteration or 0, event.phase or Phase.INIT)


def _hold(grant: PhaseEvent, end_s: float | None) -> Hold:
    job_id, iteration, phase = _phase_key(grant)
    return Hold(
        device=grant.device or "",
        job_id=job_id,
        iteration=iteration,
        phase=phase,
        start_s=grant.at_s,
        end_s=end_s,
    )
