"""The demo's numbers from recorded events; pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmux import timeline
from rmux.events import EventType, PhaseEvent
from rmux.ids import JobId
from rmux.job import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloLoop:
    """One job alone: medians, seconds. `off_device_s` is the rest of the period."""

    period_s: float
    rollout_s: float
    train_s: float

    @property
    def off_device_s(self) -> float:
        return max(0.0, self.period_s - self.rollout_s - self.train_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Throughput per device-hour against each job owning a pair of pools.

    `cap` is what the solo phase lengths allow: Σ solo ÷ max(longest loop, Σ rollout, Σ train).
    """

    gain: float
    cap: float

    @property
    def share_of_cap(self) -> float:
        return self.gain / self.cap


def loop_of(events: Sequence[PhaseEvent], *, skip: int = 1) -> SoloLoop:
    """Medians of one job's recorded loop; the first `skip` iterations are warm-up."""
    periods = [s for each in timeline.iteration_seconds(events, skip=skip).values() for s in each]
    held = [h for h in timeline.holds(events) if h.end_s is not None and h.iteration >= skip]
    return SoloLoop(
        period_s=statistics.median(periods),
        rollout_s=statistics.median(h.seconds for h in held if h.phase is Phase.ROLLOUT),
        train_s=statistics.median(h.seconds for h in held if h.phase is Phase.TRAIN),
    )


def gain_of(solo: Sequence[SoloLoop], coexec_period_s: Sequence[float]) -> Gain:
    """One entry per job, same order; all jobs on one rollout and one train device set."""
    cycle_s = max(
        max(job.period_s for job in solo),
        sum(job.rollout_s for job in solo),
        sum(job.train_s for job in solo),
    )
    return Gain(
        gain=sum(job.period_s / co for job, co in zip(solo, coexec_period_s, strict=True)),
        cap=sum(job.period_s / cycle_s for job in solo),
    )


def steady_window_s(events: Sequence[PhaseEvent], *, skip: int = 1) -> tuple[float, float]:
    """From the last warm-up end to the first end of a job's last iteration: all jobs share."""
    ends = _iteration_ends_s(events)
    return max(at[skip - 1] for at in ends.values()), min(at[-1] for at in ends.values())


def steady_periods_s(events: Sequence[PhaseEvent], *, skip: int = 1) -> dict[JobId, float]:
    """Mean period per job while all of them run, the first `skip` iterations left out.

    A mean, for throughput is what counts; iterations after the first job to finish ended are left
    out, since nobody shares the pools then.
    """
    _, shared_until_s = steady_window_s(events, skip=skip)
    periods = {}
    for job, at in _iteration_ends_s(events).items():
        shared = [instant for instant in at[skip - 1 :] if instant <= shared_until_s]
        periods[job] = (shared[-1] - shared[0]) / (len(shared) - 1)
    return periods


def _iteration_ends_s(events: Sequence[PhaseEvent]) -> dict[JobId, list[float]]:
    ends: dict[JobId, list[float]] = defaultdict(list)
    for event in events:
        if event.type is EventType.ITERATION_END and event.job_id is not None:
            ends[event.job_id].append(event.at_s)
    return dict(ends)


def lost_gain(
    solo: Mapping[JobId, SoloLoop], events: Sequence[PhaseEvent], *, skip: int = 1
) -> list[dict[str, Any]]:
    """Where the gain is lost, largest first: seconds per round and what they are.

    Imbalance is what the solo lengths cost against two perfectly filled pools; interference is how
    much longer a device is held in co-execution; hand-over is grant latency and rmux's own time.
    """
    names = list(solo)
    held = [h for h in timeline.holds(events) if h.end_s is not None and h.iteration >= skip]
    rows: list[dict[str, Any]] = []
    for phase, attribute in ((Phase.ROLLOUT, "rollout_s"), (Phase.TRAIN, "train_s")):
        alone_s = sum(getattr(solo[job], attribute) for job in names)
        shared_s = sum(
            statistics.median(h.seconds for h in held if h.job_id == job and h.phase is phase)
            for job in names
        )
        rows.append(
            {
                "what": f"interference: {phase} holds its device longer beside another job",
                "seconds_per_round": shared_s - alone_s,
                "ratio": shared_s / alone_s,
            }
        )
    sums_s = [sum(getattr(solo[job], name) for job in names) for name in ("rollout_s", "train_s")]
    cycle_s = max(*sums_s, max(loop.period_s for loop in solo.values()))
    rows.append(
        {
            "what": "imbalance: the shorter pool waits for the longer one",
            "seconds_per_round": cycle_s - statistics.mean(sums_s),
            "ratio": cycle_s / statistics.mean(sums_s),
        }
    )
    latencies_s = timeline.grant_latencies_s(events)
    if latencies_s:
        rows.append(
            {
                "what": "hand-over: release of a device to the next user function, wake apart",
                "seconds_per_round": statistics.mean(latencies_s) * 2 * len(names),
                "ratio": None,
            }
        )
    return sorted(rows, key=lambda row: -row["seconds_per_round"])
