"""Judge a journal: did every device serve one job at a time, and every job its phases in order?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmux.events import EventType, PhaseEvent
from rmux.job import Phase

_Step = tuple[Phase, int]
_CYCLE = (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    rule: str
    """'overlap', 'order', 'early-start', 'no-grant' or 'phase-order'."""
    message: str


@dataclass(slots=True, kw_only=True)
class _Hold:
    """One grant's time on its device."""

    order: tuple[int, int]
    job: str
    use: tuple[object, ...]
    """(job, attempt, iteration, phase) it was granted for."""
    from_s: float
    until_s: float = float("inf")
    started_s: float | None = None


def check(events: Iterable[PhaseEvent]) -> list[Violation]:
    """What the journal shows to be wrong; empty when nothing is.

    Grants and releases may be told twice (a new controller repeats those it took over); the first
    word counts. A release whose grant died with a controller's journal says when that was. A grant
    without a release holds its device to the end of the journal.
    """
    known = sorted(events, key=lambda event: event.at_s)
    holds, found = _holds(known)
    for device, device_holds in sorted(holds.items()):
        found += _check_device(device, device_holds)
    by_attempt: dict[tuple[str, int], list[PhaseEvent]] = {}
    ends: dict[tuple[str, int], dict[_Step, float]] = {}
    for event in known:
        if event.job_id is None or event.phase not in _CYCLE or event.iteration is None:
            continue
        key = (event.job_id, int(event.data.get("attempt", 0)))
        if event.type is EventType.PHASE_START:
            by_attempt.setdefault(key, []).append(event)
        elif event.type is EventType.PHASE_END and "error" not in event.data:
            ends.setdefault(key, {})[event.phase, event.iteration] = event.at_s
    for (job, attempt), starts in sorted(by_attempt.items()):
        what = f"{job} attempt {attempt}"
        if any(event.data.get("max_staleness") for event in starts):
            found += _check_ahead(what, starts, ends.get((job, attempt), {}))
        else:
            found += _check_phases(what, starts)
    return found + _check_restarts(by_attempt)


def _holds(events: list[PhaseEvent]) -> tuple[dict[str, list[_Hold]], list[Violation]]:
    holds: dict[str, dict[tuple[int, int], _Hold]] = {}
    found = []
    for event in events:
        if event.type in (EventType.GRANT, EventType.RELEASED) and event.device is not None:
            released = event.type is EventType.RELEASED
            from_s = event.data.get("granted_s", event.at_s) if released else event.at_s
            hold = holds.setdefault(event.device, {}).setdefault(
                _order(event),
                _Hold(order=_order(event), job=str(event.job_id), use=_use(event), from_s=from_s),
            )
            if released:
                hold.until_s = min(hold.until_s, event.at_s)
    for event in events:
        starts = event.type in (EventType.PHASE_START, EventType.DEVICE_JOINED)
        if not starts or event.device is None:
            continue
        for device in event.data.get("devices") or [event.device]:
            mine = [hold for hold in holds.get(device, {}).values() if hold.use == _use(event)]
            for hold in mine:
                hold.started_s = event.at_s if hold.started_s is None else hold.started_s
            if not mine:
                message = f"{event.job_id} started {event.phase} on {device} without a grant"
                found.append(Violation(rule="no-grant", message=message))
    return {device: list(by_order.values()) for device, by_order in holds.items()}, found


def _check_device(device: str, holds: list[_Hold]) -> list[Violation]:
    found = []
    in_time = sorted(holds, key=lambda hold: hold.from_s)
    for before, after in itertools.pairwise(in_time):
        pair = f"{device}: {after.job} {after.order} after {before.job} {before.order}"
        if after.order <= before.order:
            found.append(Violation(rule="order", message=f"{pair} does not grow"))
        if after.from_s < before.until_s:
            over_s = before.until_s - after.from_s
            found.append(
                Violation(rule="overlap", message=f"{pair} was granted {over_s:.3f} s too early")
            )
        if after.started_s is not None and after.started_s < before.until_s:
            found.append(
                Violation(rule="early-start", message=f"{pair} started before the release")
            )
    return found


def _check_phases(what: str, starts: list[PhaseEvent]) -> list[Violation]:
    """rollout, train, sync of one iteration, then of the next; a script may leave sync out."""
    found = []
    before: tuple[int, int] | None = None
    for event in starts:
        assert event.phase is not None
        assert event.iteration is not None
        now = (event.iteration, _CYCLE.index(event.phase))
        if before is None:
            allowed = now[1] == 0
        elif now[0] == before[0]:
            allowed = now[1] == before[1] + 1
        else:
            allowed = now == (before[0] + 1, 0) and before[1] >= 1
        if not allowed:
            message = f"{what}: {event.phase} of iteration {event.iteration} comes after {before}"
            found.append(Violation(rule="phase-order", message=message))
        before = now
    return found


def _check_ahead(
    what: str, starts: list[PhaseEvent], ends: Mapping[_Step, float]
) -> list[Violation]:
    """One step off-policy: rollouts in turn, trains in turn, and a rollout only after the sync of
    two iterations before it."""
    found = []
    first = starts[0].iteration or 0
    begun: set[_Step] = set()
    for event in starts:
        assert event.phase is not None
        assert event.iteration is not None
        number, step = event.iteration, (event.phase, event.iteration)
        before: tuple[_Step, ...] = ((Phase.TRAIN, number),)
        if event.phase is Phase.ROLLOUT:
            before = ((Phase.ROLLOUT, number - 1), (Phase.SYNC, number - 2))
        elif event.phase is Phase.TRAIN:
            before = ((Phase.ROLLOUT, number), (Phase.SYNC, number - 1))
        for phase, needed in before:
            if needed >= first and ends.get((phase, needed), float("inf")) > event.at_s:
                message = f"{what}: {event.phase} of iteration {number} comes before the end of"
                found.append(
                    Violation(rule="phase-order", message=f"{message} {phase} of {needed}")
                )
        if step in begun:
            message = f"{what}: {event.phase} of iteration {number} comes twice"
            found.append(Violation(rule="phase-order", message=message))
        begun.add(step)
    return found


def _check_restarts(by_attempt: dict[tuple[str, int], list[PhaseEvent]]) -> list[Violation]:
    """A later attempt goes on where the last one was, or a little before, never beyond."""
    found = []
    reached: dict[str, int] = {}
    for (job, attempt), starts in sorted(by_attempt.items()):
        iterations = [event.iteration for event in starts if event.iteration is not None]
        if job in reached and iterations[0] > reached[job] + 1:
            message = f"{job} attempt {attempt} begins at iteration {iterations[0]}"
            found.append(
                Violation(rule="phase-order", message=f"{message}, {reached[job]} was the last")
            )
        reached[job] = max(iterations[-1], reached.get(job, 0))
    return found


def _use(event: PhaseEvent) -> tuple[object, ...]:
    return (event.job_id, event.data.get("attempt"), event.iteration, event.phase)


def _order(event: PhaseEvent) -> tuple[int, int]:
    return (int(event.data.get("epoch", 0)), int(event.data.get("seq", 0)))
