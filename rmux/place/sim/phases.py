"""A whole trace phase by phase: every iteration of every job as it would come out.

Jobs come as in a replay and are placed by the live index; each runs as many iterations as its
duration holds solo ones, and goes when they are done. In between each group follows the strict
order's recurrence with phase times of its own making: drift, jitter, tails, reward, interference,
failures. What is done when times leave the plan is the `answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rmux.cluster import Policy
from rmux.errors import InternalError
from rmux.ids import JobId
from rmux.place.sim.durations import Durations, Fixed
from rmux.place.sim.faults import Failures
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.world import World


class Answer(StrEnum):
    """To phase times that leave the plan."""

    STATIC = "static"
    """Nothing: everybody stays where they were put."""
    RESUBMIT = "resubmit"
    """RollMux: when drift saturates a group (load >= cycle), the job that grew most is stopped and
    submitted again with what was observed."""
    REPLACE = "replace"
    """The one job whose growth breaks a bound (period > `threshold` x the smallest promise) is
    admitted again with what was observed, and moves if that says so."""
    REGROUP = "regroup"
    """Every `regroup_s` all jobs are packed anew with what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What durations may depend on."""

    iterations: Mapping[JobId, int]
    """Of each job's life."""
    residents: Mapping[JobId, int]
    """Jobs in each job's group, kept up to date."""


def _worst_cases(source: Source) -> Durations:
    return Fixed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    answer: Answer = Answer.STATIC
    world: World = field(default_factory=World)
    sharing: Policy = field(default_factory=lambda: Policy(max_members=5))
    durations: Callable[[Source], Durations] = _worst_cases
    """Makes the source of phase times."""
    seed: int = 0
    threshold: float = 1.0
    """Of a promise: the part that the observed period may use before REPLACE acts."""
    headroom: float = 1.0
    """What a job admitted again is planned for ÷ what was observed: above 1, it is not soon again
    beyond its plan, and is promised less."""
    tolerance: float = 0.01
    """A phase within this fraction of its plan has not drifted."""
    window: int = 8
    """Iterations that an observation looks back."""
    quantile: float = 0.9
    """Of the window: what is held against the plan."""
    restart_s: tuple[float, float] = (197.0, 419.0)
    """What a move takes from a job, uniform by job: migration and restart of 7B to 32B models."""
    regroup_s: float = 3600.0
    failures: Failures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    job_id: JobId
    arrival_s: float
    started_s: float
    ended_s: float
    iterations: int
    judged: int
    """Those that follow another: the first one, and the first after a move or a failure, have no
    end before them that they could be counted from."""
    within: int
    """Judged iterations within SLO x worst-case solo, as promised at its last admission."""
    within_submitted: int
    """Within SLO x worst-case solo, as submitted."""
    within_relative: int
    """Within SLO x what the very iteration would take alone."""
    slowdown: float
    """Mean judged iteration ÷ mean of what each would take alone."""
    moves: int
    lost_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An iteration lasts from the end of the one before to its own end. What moves and failures
    took is told apart (`moved_s`, `failures`), and is in the span and the cost."""

    jobs: tuple[JobOutcome, ...]
    """In order of departure."""
    span_s: float
    cost_usd: float
    moves: int
    moved_s: float
    """Restarts of moved jobs, all together."""
    failures: int
    rollout_use: float
    """Share of the nodes held in which a phase ran."""
    train_use: float
    elapsed_s: float
    """What computing it took."""

    @property
    def usd_per_h(self) -> float:
        return self.cost_usd / (self.span_s / 3600)

    @property
    def iterations(self) -> int:
        return sum(job.iterations for job in self.jobs)

    @property
    def judged(self) -> int:
        return sum(job.judged for job in self.jobs)

    @property
    def attainment(self) -> float:
        """Share of judged iterations within SLO x worst-case solo time, as promised at the job's
        last admission."""
        return self._share(sum(job.within for job in self.jobs))

    @property
    def attainment_submitted(self) -> float:
        """Share within SLO x worst-case solo time, as first submitted."""
        return self._share(sum(job.within_submitted for job in self.jobs))

    @property
    def attainment_relative(self) -> float:
        """Share within SLO x the solo time at that iteration's own phase times."""
        return self._share(sum(job.within_relative for job in self.jobs))

    @property
    def violations(self) -> int:
        return self.judged - sum(job.within for job in self.jobs)

    def _share(self, within: int) -> float:
        return within / self.judged if self.judged else 1.0


def run(jobs: Sequence[SimJob], options: Options) -> Result:
    """The trace under the options. The jobs come by arrival.

    InfeasibleError when a job fits nowhere and never will; InternalError without a job.
    """
    from rmux.place.sim.phase_run import PhaseRun  # it imports what is named here

    if not jobs:
        raise InternalError("a trace needs a job")
    return PhaseRun(jobs, options).result()
