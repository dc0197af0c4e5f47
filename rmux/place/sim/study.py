"""One replay with its baselines: what `rmux sim` runs, once or for several policies and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rmux.errors import UserError
from rmux.events import PhaseEvent
from rmux.place.sim.bound import Bound, Bounder
from rmux.place.sim.metrics import Metrics, measure
from rmux.place.sim.policies.base import Policy
from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.replay import Durations, Point, replay
from rmux.place.sim.segments import PhaseSetting, Segments
from rmux.place.sim.trace import Trace
from rmux.place.sim.workload import Drawing, Workload
from rmux.place.sim.world import World

MOST_JOBS = 200_000
"""Of one replay: some minutes of computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a replay depends on beside trace, policy and seed."""

    drawing: Drawing = field(default_factory=Drawing)
    world: World = field(default_factory=World)
    durations: Durations = Durations.HOLD
    max_members: int = 5
    margin: float = 0.0
    payback_s: float = 3600.0
    """A move must earn its price within this time."""
    phases: PhaseSetting | None = None
    """How phases are simulated; None: they take what was planned."""
    with_bounds: bool = True
    """Whether the best possible cost is computed, too."""

    def __post_init__(self) -> None:
        if self.max_members < 0:
            raise UserError(f"a group of at most {self.max_members} jobs; write 0 for no limit")
        if not 0 <= self.margin < float("inf"):
            raise UserError(f"margin is {self.margin:g}; write a fraction such as 0.05")

    def of_seed(self, seed: int) -> Study:
        return replace(self, drawing=replace(self.drawing, seed=seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    policy: str
    seed: int
    metrics: Metrics
    bound: Bound | None
    """None where it was not asked for."""
    events: tuple[PhaseEvent, ...] = ()
    """What happened phase by phase, in order of time; where that was asked for."""


def run(
    trace: Trace,
    policies: Sequence[str],
    study: Study,
    *,
    watch: Callable[[Point], None] | None = None,
) -> tuple[Result, ...]:
    """One replay of the same jobs for each policy.

    UserError for an unknown policy, InfeasibleError for a job that can never run.
    """
    seed = study.drawing.seed
    setting = Setting(
        world=study.world,
        max_members=study.max_members,
        margin=study.margin,
        payback_s=study.payback_s,
        seed=seed,
    )
    made = [(name, make(name, setting)) for name in policies]
    if len(trace) > MOST_JOBS:
        raise UserError(
            f"{trace.name}: {len(trace):,} jobs; a replay takes at most {MOST_JOBS:,}",
            code="sim.too-large",
            hint="take a part of them with --window or --source",
        )
    jobs = Workload(trace, study.drawing)
    study.world.check_fits(jobs)
    bounder = Bounder(jobs, setting) if study.with_bounds else None
    results = []
    for name, policy in made:
        followed: Policy = policy
        segments = None
        if study.phases is not None:
            followed = segments = Segments.following(policy, study.phases, jobs, seed=seed)
        done = replay(jobs, followed, world=study.world, durations=study.durations, watch=watch)
        results.append(
            Result(
                policy=name,
                seed=seed,
                metrics=measure(done, segments),
                events=() if segments is None else in_time(segments.events),
                bound=None if bounder is None else bounder.of(done),
            )
        )
    return tuple(results)


def in_time(events: Sequence[PhaseEvent]) -> tuple[PhaseEvent, ...]:
    """Numbered anew in order of time, as a store would have them."""
    ordered = sorted(events, key=lambda event: event.at_s)
    return tuple(
        replace(event, seq=number, source="sim", source_n=number)
        for number, event in enumerate(ordered, start=1)
    )
