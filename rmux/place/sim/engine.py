"""Phase by phase through virtual time: what a group's phases do to each other.

Integer milliseconds, so that fixed phase times give exactly the period of the closed form. The
devices go round by `rmux.place.rotation`, the code of the live controller; what happens is told in
the same events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmux.cluster import Cluster
from rmux.errors import InternalError
from rmux.events import PhaseEvent
from rmux.group import CoExecGroup
from rmux.ids import JobId
from rmux.place.sim.dispatch import Dispatch
from rmux.place.sim.durations import Durations, Fixed
from rmux.place.sim.faults import Failures
from rmux.place.sim.jobrun import Iteration
from rmux.place.sim.simulation import Simulation
from rmux.place.sim.tails import Migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    iterations: int
    """Of each job."""
    leave: bool = True
    """Whether a job ends after its iterations; else it goes on until the slowest has its own."""
    durations: Durations = field(default_factory=Fixed)
    seed: int = 0
    dispatch: Dispatch = Dispatch.STRICT
    cluster: Cluster | None = None
    """Its links are shared by the syncs over them; without one each sync has its planned time."""
    init: bool = False
    """Whether jobs begin with the device part of init; else they are warm."""
    arrivals_s: Mapping[JobId, float] = field(default_factory=dict)
    """When a job joins its group; those not named are there from the begin."""
    failures: Failures | None = None
    migration: Migration | None = None
    """Whose stragglers move together; None leaves every rollout all its devices to its end."""
    events: bool = False
    """Whether to tell every phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """What became of one job."""

    job_id: JobId
    iterations: tuple[Iteration, ...]
    wait_s: float
    """For devices, in all."""
    lost_iterations: int = 0
    """Begun and repeated after a failure."""
    attempts: int = 1
    freed_device_s: float = 0.0
    """Device time that its moved stragglers left to others before their rollouts' ends."""

    def iteration_s(self, *, skip: int = 1) -> float:
        """Mean seconds from the end of one iteration to the end of the next, the first `skip` ends
        left out. InternalError when fewer than two are left."""
        ends = [one.end_ms for one in self.iterations[skip:]]
        if len(ends) < 2:
            raise InternalError(f"job {self.job_id} has too few iterations to tell their length")
        return (ends[-1] - ends[0]) / 1000 / (len(ends) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    jobs: Mapping[JobId, JobTimes]
    events: tuple[PhaseEvent, ...]
    """Empty unless asked for."""
    end_s: float


def run(groups: Sequence[CoExecGroup], options: Options) -> Result:
    """Simulate the groups until every job has its iterations.

    InternalError where nothing can go on, which strict order excludes.
    """
    simulation = Simulation(
        seed=options.seed,
        durations=options.durations,
        cluster=options.cluster,
        failures=options.failures,
        migration=options.migration,
        init=options.init,
        events=options.events,
    )
    limit = options.iterations if options.leave else None
    for group in groups:
        simulation.add(group, dispatch=options.dispatch, limit=limit, arrivals_s=options.arrivals_s)
    simulation.run(until=options.iterations)
    jobs = {
        job.id: JobTimes(
            job_id=job.id,
            iterations=tuple(job.iterations),
            wait_s=job.wait_ms / 1000,
            lost_iterations=job.lost,
            attempts=job.attempt,
            freed_device_s=job.freed_device_ms / 1000,
        )
        for job in simulation.jobs.values()
    }
    return Result(jobs=jobs, events=simulation.journal.events(), end_s=simulation.now_ms / 1000)
