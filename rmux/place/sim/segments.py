"""A replay phase by phase: what the planned groups do when phases take what they take.

The policy places jobs as ever. Between two changes of a group its members run in the phase-level
engine, warm, from the first event to the next; each of their iterations is held against the job's
promise. An iteration counts from the end of the one before; the first round after each change of
the group, in which it still finds its order, is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Protocol, runtime_checkable

from rmux.errors import UserError
from rmux.events import PhaseEvent
from rmux.group import CoExecGroup, Member
from rmux.ids import GroupId, JobId
from rmux.job import Phase
from rmux.place.period import period
from rmux.place.sim import engine
from rmux.place.sim.dispatch import Dispatch
from rmux.place.sim.durations import MIXED, Drift, Drifting, Durations, Fixed, Jittered, Template
from rmux.place.sim.faults import Failures
from rmux.place.sim.jobrun import Iteration
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Policy, Standing
from rmux.place.sim.replay import SLACK

DETECT_S, RESTART_S = 5.0, 60.0
"""Until a failure is seen, and from there until the job asks for devices again."""
_ROUNDING_S = 0.003
"""Phases are whole milliseconds: an iteration may be this much longer than planned."""


class Drifts(StrEnum):
    NONE = "none"
    INCREASING = "increasing"
    DECREASING = "decreasing"
    MIXED = "mixed"
    """Each job draws one of seven templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSetting:
    """What phases take; without any of these exactly what was planned."""

    jitter: float = 0.0
    """Coefficient of variation of rollout and train."""
    drift: Drifts = Drifts.NONE
    mtbf_s: float = 0.0
    """Mean time between failures of a job; 0 for none."""
    dispatch: Dispatch = Dispatch.STRICT
    events: bool = False
    """Whether to keep what happened."""

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < 10:
            raise UserError(f"a jitter of {self.jitter:g}; write a fraction such as 0.1")

    def durations(self, jobs: Iterable[SimJob], *, seed: int) -> Durations:
        source: Durations = Jittered(Fixed(), self.jitter) if self.jitter else Fixed()
        if self.drift is Drifts.NONE:
            return source
        drifts: dict[JobId, Drift] = {}
        iterations: dict[JobId, int] = {}
        for job in jobs:
            iterations[job.id] = job.spec.iterations
            drifts[job.id] = (
                random.Random(f"{seed}/drift/{job.id}").choice(MIXED)
                if self.drift is Drifts.MIXED
                else Drift(template=Template(self.drift))
            )
        return Drifting(source, drifts, iterations)

    @property
    def failures(self) -> Failures | None:
        if not self.mtbf_s:
            return None
        return Failures(mtbf_s=self.mtbf_s, detect_s=DETECT_S, restart_s=RESTART_S)


@runtime_checkable
class Grouping(Policy, Protocol):
    """A policy whose jobs stand in co-execution groups."""

    def groups(self) -> tuple[CoExecGroup, ...]: ...


@dataclass(slots=True, kw_only=True)
class Seen:
    """Iterations of one job, and how many of them took longer than promised."""

    iterations: int = 0
    late: int = 0
    """Longer than SLO x worst-case solo time."""
    late_relative: int = 0
    """Longer than SLO x what the phases of that iteration take alone."""
    slowest: float = 0.0
    """÷ worst-case solo time."""
    seconds: float = 0.0
    planned_s: float = 0.0
    done: int = 0
    """Iterations that ended, those left out above included."""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    group: CoExecGroup
    since_s: float


@dataclass(slots=True)
class Segments:
    """Stands in for the policy it follows."""

    policy: Grouping
    setting: PhaseSetting
    durations: Durations
    seed: int
    jobs: dict[JobId, Seen] = field(default_factory=dict)
    events: list[PhaseEvent] = field(default_factory=list)
    """Of the iterations that ended before their group changed; in order of those changes."""
    _open: dict[GroupId, _Open] = field(default_factory=dict)
    _runs: int = 0

    @staticmethod
    def following(
        policy: Policy, setting: PhaseSetting, jobs: Iterable[SimJob], *, seed: int
    ) -> Segments:
        """UserError for a policy without groups."""
        if not isinstance(policy, Grouping):
            raise UserError(
                "--mode phases needs a policy whose jobs stand in groups",
                hint="rollmux, rollmux-static or rollmux-paper",
            )
        return Segments(policy, setting, setting.durations(jobs, seed=seed), seed)

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing:
        standing = self.policy.step(now_s, arrived=arrived, departed=departed)
        now = {group.id: group for group in self.policy.groups()}
        for group_id, was in list(self._open.items()):
            group = now.get(group_id)
            if group is None or _key(group) != _key(was.group):
                self._simulate(was, now_s)
                del self._open[group_id]
        for group_id, group in now.items():
            self._open.setdefault(group_id, _Open(group, now_s))
        return standing

    def _simulate(self, was: _Open, until_s: float) -> None:
        """What the group did since it last changed."""
        group, turns = was.group, was.group.round
        period_s = period(group.members, order=turns).period_s
        rounds = int((until_s - was.since_s) / period_s)
        if not rounds:
            return
        self._runs += 1
        seen = {m.job_id: self.jobs.setdefault(m.job_id, Seen()) for m in group.members}
        found = engine.run(
            [group],
            engine.Options(
                iterations=rounds,
                leave=False,
                durations=_Onwards(self.durations, {job: one.done for job, one in seen.items()}),
                dispatch=self.setting.dispatch,
                failures=self.setting.failures,
                seed=self.seed * 1_000_003 + self._runs,
                events=self.setting.events,
            ),
        )
        length_ms = 1000 * (until_s - was.since_s) * SLACK
        inside = {
            job: [one for one in times.iterations if one.end_ms <= length_ms]
            for job, times in found.jobs.items()
        }
        for event in found.events:
            if event.job_id is None or event.iteration is None:
                continue
            if event.iteration < len(inside[event.job_id]):
                own = seen[event.job_id]
                self.events.append(_placed(event, was.since_s, run=self._runs, after=own))
        for member in group.members:
            own, attempts = seen[member.job_id], found.jobs[member.job_id].attempts
            planned_s = period_s / turns.count(member.job_id)
            _count(own, member, inside[member.job_id], planned_s, settled=len(turns))
            own.done += len(inside[member.job_id])
            own.failures += attempts - 1


def _count(
    seen: Seen, member: Member, times: Sequence[Iteration], planned_s: float, *, settled: int
) -> None:
    for before, one in pairwise(times[settled - 1 :]):
        took_s = (one.end_ms - before.end_ms) / 1000
        alone_s = (one.rolled_ms - one.rollout_ms + one.end_ms - one.train_ms) / 1000
        seen.iterations += 1
        seen.seconds += took_s
        seen.planned_s += planned_s
        seen.slowest = max(seen.slowest, took_s / member.solo_s)
        seen.late += took_s > member.slo * member.solo_s * SLACK + _ROUNDING_S
        seen.late_relative += took_s > member.slo * alone_s * SLACK + _ROUNDING_S


@dataclass(frozen=True, slots=True)
class _Onwards:
    """Goes on counting iterations where a job has done some already."""

    base: Durations
    done: Mapping[JobId, int]

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        return self.base.of(job, phase, iteration + self.done[job.job_id], rng)


def _key(group: CoExecGroup) -> tuple[object, ...]:
    return group.rotation_version, tuple(m.job_id for m in group.members), group.round


def _placed(event: PhaseEvent, by_s: float, *, run: int, after: Seen) -> PhaseEvent:
    """In the whole replay: later, and counted on from what the job did before. Each segment is one
    epoch of grants."""
    data = dict(event.data)
    for key, more in (
        ("attempt", after.failures),
        ("epoch", run - 1),
        ("granted_s", by_s),
        ("finished", after.done),
        ("weight_version", after.done),
    ):
        if key in data:
            data[key] += more
    return replace(
        event,
        at_s=event.at_s + by_s,
        at=event.at + timedelta(seconds=by_s),
        iteration=(event.iteration or 0) + after.done,
        data=data,
    )
