"""What the simulator makes of a live group: its measured phases, or those each job has alone."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmux.events import EventType, PhaseEvent
from rmux.group import CoExecGroup, Member
from rmux.ids import JobId
from rmux.job import Phase
from rmux.place.sim.engine import Options, run

_PARTS = ("run_s", "park_s", "overhead_s")
"""Of a phase's end; its switch stands in its begin."""

PhaseSeconds = Mapping[tuple[JobId, Phase], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Durations as they were measured, iteration by iteration; the median beyond the last."""

    seconds: PhaseSeconds

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        known = self.seconds[job.job_id, phase]
        return known[iteration] if iteration < len(known) else statistics.median(known)


def measured(events: Sequence[PhaseEvent]) -> PhaseSeconds:
    """Seconds of each phase of each iteration: switch, run, park and rmux's own time; a sync with
    the checkpoint after it."""
    found: dict[tuple[JobId, Phase], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        if event.job_id is None or event.iteration is None:
            continue
        if event.type is EventType.CHECKPOINT:
            found[event.job_id, Phase.SYNC][event.iteration] += float(event.data["seconds"])
        elif event.phase in (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC):
            of = found[event.job_id, event.phase]
            if event.type is EventType.PHASE_START:
                of[event.iteration] += float(event.data.get("switch_s", 0.0))
            elif event.type is EventType.PHASE_END:
                of[event.iteration] += sum(float(event.data.get(part, 0.0)) for part in _PARTS)
    return {key: [by[number] for number in sorted(by)] for key, by in found.items()}


def simulated_s(
    group: CoExecGroup, seconds: PhaseSeconds, *, iterations: int
) -> dict[JobId, float]:
    """Mean iteration of each job, the first two left out as in the live group."""
    options = Options(iterations=iterations, leave=False, durations=Recorded(seconds))
    found = run([group], options)
    return {job: times.iteration_s(skip=2) for job, times in found.jobs.items()}


def mean_iterations_s(events: Sequence[PhaseEvent], *, skip: int = 2) -> dict[JobId, float]:
    """Mean seconds from the end of an iteration to the end of the next, the first `skip` left out,
    while every job runs."""
    ends: dict[JobId, list[float]] = defaultdict(list)
    for event in events:
        if event.type is EventType.ITERATION_END and event.job_id is not None:
            ends[event.job_id].append(event.at_s)
    until_s = min(at[-1] for at in ends.values())
    means = {}
    for job, at in ends.items():
        shared = [instant for instant in at[skip:] if instant <= until_s]
        means[job] = (shared[-1] - shared[0]) / (len(shared) - 1)
    return means
