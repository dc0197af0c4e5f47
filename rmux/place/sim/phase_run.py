"""The clock of a phase-level trace: arrivals, rounds, departures, and what is done about drift."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rmux.cluster import PoolKind
from rmux.errors import InfeasibleError
from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, CoExecGroup, Member
from rmux.ids import GroupId, JobId
from rmux.place.index import Index
from rmux.place.sim import answers, faults
from rmux.place.sim.jobrun import Iteration
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.observed import Observed
from rmux.place.sim.phases import Answer, JobOutcome, Options, Result, Source
from rmux.place.sim.recurrence import Recurrence, drawn

_DEPART, _ARRIVE, _REACT, _ROUND = range(4)
"""What goes first at one instant."""
_ROUNDING_MS = 5
"""Phases are whole milliseconds: a sum of them may exceed its bound by this much."""


@dataclass(slots=True)
class Job:
    sim: SimJob
    limit: int
    profile: JobProfile
    """What it is admitted with."""
    restart_ms: int
    member: Member | None = None
    """At its first placement: what its durations come from."""
    started_ms: int = 0
    ready_ms: int = 0
    done: int = 0
    last_ms: int | None = None
    """End of the iteration before; None when the next one is the first of its kind."""
    within: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Iterations within the promise, the submitted promise, and relative to itself."""
    spent_ms: int = 0
    alone_ms: int = 0
    moves: int = 0
    lost: int = 0
    judged: int = 0
    rng: random.Random = field(default_factory=random.Random)

    def judge(self, spent_ms: int, alone_ms: int) -> None:
        """Hold an iteration against what was promised, submitted, and against itself."""
        self.judged += 1
        self.spent_ms += spent_ms
        self.alone_ms += alone_ms
        bounds_s = (self.profile.solo_s, self.sim.profile.solo_s, alone_ms / 1000)
        for place, solo_s in enumerate(bounds_s):
            bound_ms = 1000 * self.sim.spec.slo * solo_s + _ROUNDING_MS
            self.within[place] += spent_ms <= bound_ms


@dataclass(slots=True)
class Group:
    id: GroupId
    members: tuple[Member, ...] = ()
    round: tuple[JobId, ...] = ()
    recurrence: Recurrence = field(default_factory=Recurrence)
    version: int = 0
    """Counts changes of members: a round foreseen before is void."""
    nodes: dict[PoolKind, int] = field(default_factory=dict)


class PhaseRun:
    def __init__(self, jobs: Sequence[SimJob], options: Options) -> None:
        self.options = options
        self._began = time.perf_counter()
        self.cluster = replace(options.world.cluster, policy=options.sharing)
        self.index = Index.of(ClusterState(revision=0, cluster=self.cluster, groups=()))
        self.jobs = {job.id: self._job(job) for job in jobs}
        self.present: set[JobId] = set()
        self.groups: dict[GroupId, Group] = {}
        self.observed = Observed(window=options.window, quantile=options.quantile)
        self.now_ms = 0
        self.moves = 0
        self._waiting: list[JobId] = []
        self._residents: dict[JobId, int] = {}
        self._outcomes: list[JobOutcome] = []
        self._moved_ms = self._failures = 0
        self._cost_usd = self._usd_per_h = 0.0
        self._held_ms = dict.fromkeys(PoolKind, 0)
        self._busy_ms = dict.fromkeys(PoolKind, 0)
        self._heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self._pushed = 0
        limits = {job_id: job.limit for job_id, job in self.jobs.items()}
        source = Source(iterations=limits, residents=self._residents)
        self._draw = drawn(options.durations(source), seed=options.seed)
        for job in jobs:
            self._at(round(1000 * job.arrival_s), _ARRIVE, partial(self._arrive, job.id))
        if options.answer is Answer.REGROUP:
            self._at(round(1000 * options.regroup_s), _REACT, self._regroup)

    def result(self) -> Result:
        while self._heap:
            at_ms, _, _, action = heapq.heappop(self._heap)
            self._pass(at_ms)
            action()
        if self._waiting:
            waiting = self.jobs[self._waiting[0]].sim
            raise InfeasibleError(
                f"job {waiting.spec.name} waits, and nothing will change for it",
                hint="give --pools more nodes, or leave it out for pools that grow",
            )
        use = {
            kind: self._busy_ms[kind] / held if (held := self._held_ms[kind]) else 0.0
            for kind in PoolKind
        }
        return Result(
            jobs=tuple(self._outcomes),
            span_s=self.now_ms / 1000,
            cost_usd=self._cost_usd,
            moves=self.moves,
            moved_s=self._moved_ms / 1000,
            failures=self._failures,
            rollout_use=use[PoolKind.ROLLOUT],
            train_use=use[PoolKind.TRAIN],
            elapsed_s=time.perf_counter() - self._began,
        )

    def _job(self, sim: SimJob) -> Job:
        rng = random.Random(f"{self.options.seed}/restart/{sim.id}")
        return Job(
            sim=sim,
            limit=max(1, round(sim.duration_s / sim.solo_s)),
            profile=sim.profile,
            restart_ms=round(1000 * rng.uniform(*self.options.restart_s)),
            rng=faults.generator(self.options.seed, sim.id),
        )

    # -- time

    def _at(self, at_ms: int, order: int, action: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), order, self._pushed, action))

    def _pass(self, at_ms: int) -> None:
        passed_ms = at_ms - self.now_ms
        if passed_ms:
            self._cost_usd += self._usd_per_h * passed_ms / 3_600_000
            for group in self.groups.values():
                for kind, count in group.nodes.items():
                    self._held_ms[kind] += count * passed_ms
            self.now_ms = at_ms

    # -- placement

    def _arrive(self, job_id: JobId) -> None:
        self.present.add(job_id)
        self.jobs[job_id].ready_ms = self.now_ms
        if not self._place(job_id):
            self._waiting.append(job_id)

    def _place(self, job_id: JobId) -> bool:
        job = self.jobs[job_id]
        spec, profile = job.sim.spec, job.profile
        decision = self.index.decide(spec=spec, profile=profile, job_id=job_id)
        if decision.never_fits:
            raise InfeasibleError(f"job {spec.name} never fits: {decision.reason.message}")
        if decision.assignment is None:
            return False
        job.started_ms = job.ready_ms = self.now_ms
        self.settle({self.apply(job_id, decision.assignment)})
        return True

    def apply(self, job_id: JobId, assignment: Assignment) -> GroupId:
        """Put the job there with the profile it is admitted with; returns the group's id."""
        job = self.jobs[job_id]
        group_id = self.index.apply(assignment, spec=job.sim.spec, profile=job.profile)
        if job.member is None:
            job.member = self.index.group(group_id).member(job_id)
        return group_id

    def note_move(self, job_id: JobId) -> None:
        """The job stops after the iteration it is in, and is back after its restart."""
        job = self.jobs[job_id]
        job.ready_ms = max(self.now_ms, job.ready_ms) + job.restart_ms
        job.last_ms = None
        job.moves += 1
        self.moves += 1
        self._moved_ms += job.restart_ms

    def settle(self, changed: set[GroupId]) -> None:
        """Take over the groups that placement changed."""
        here = {group.id: group for group in self.index.groups()}
        for group_id in changed:
            if group_id in here:
                self._take(here[group_id])
            elif group_id in self.groups:
                self.groups.pop(group_id).version += 1
        self._usd_per_h = self.index.usd_per_h()

    def _take(self, found: CoExecGroup) -> None:
        group = self.groups.setdefault(found.id, Group(found.id))
        group.members, group.round = found.members, found.round
        group.version += 1
        train = len(found.members[0].placement.train_nodes)
        group.nodes = {PoolKind.TRAIN: train, PoolKind.ROLLOUT: len(found.nodes) - train}
        jobs = {member.job_id: self.jobs[member.job_id] for member in found.members}
        group.recurrence.set_members(
            found.members,
            found.round,
            ready_ms={job_id: job.ready_ms for job_id, job in jobs.items()},
            counts={job_id: job.done for job_id, job in jobs.items()},
            limits={job_id: job.limit for job_id, job in jobs.items()},
        )
        self._residents.update(dict.fromkeys(jobs, len(jobs)))
        self._foresee(group)

    def adopt(self, index: Index) -> None:
        """Go on with another packing of the jobs that are here."""
        self.index = index
        before = {frozenset(m.job_id for m in g.members): g for g in self.groups.values()}
        for group in self.groups.values():
            group.version += 1
        self.groups = {}
        for found in index.groups():
            known = before.get(frozenset(member.job_id for member in found.members))
            if known is not None:
                known.id = found.id
                self.groups[found.id] = known
            self._take(found)
        self._usd_per_h = index.usd_per_h()

    # -- rounds

    def _foresee(self, group: Group) -> None:
        begin_ms = group.recurrence.begin_ms
        if begin_ms is not None:
            self._at(begin_ms, _ROUND, partial(self._go_round, group, group.version))

    def _go_round(self, group: Group, version: int) -> None:
        if version != group.version:
            return
        latest_ms = self.now_ms
        for job_id, times in group.recurrence.go_round(self._phases):
            latest_ms = max(latest_ms, times.end_ms)
            self._account(group, self.jobs[job_id], job_id, times)
        if self.options.answer in (Answer.RESUBMIT, Answer.REPLACE):
            self._at(latest_ms, _REACT, partial(self._react, group, version))
        self._foresee(group)

    def _phases(self, member: Member, iteration: int) -> tuple[int, int, int]:
        """As submitted: a profile that was observed must not drift once more."""
        submitted = self.jobs[member.job_id].member
        return self._draw(submitted or member, iteration)

    def _account(self, group: Group, job: Job, job_id: JobId, times: Iteration) -> None:
        rollout_ms = times.rolled_ms - times.rollout_ms
        train_ms = times.trained_ms - times.train_ms
        alone_ms = rollout_ms + train_ms + times.end_ms - times.trained_ms
        placement = next(m.placement for m in group.members if m.job_id == job_id)
        self._busy_ms[PoolKind.ROLLOUT] += rollout_ms * len(placement.rollout_nodes)
        self._busy_ms[PoolKind.TRAIN] += train_ms * len(placement.train_nodes)
        self.observed.note(job_id, rollout_ms, train_ms)
        is_first = job.last_ms is None
        began_ms = times.rollout_ms if job.last_ms is None else job.last_ms
        spent_ms = times.end_ms - began_ms
        if self._fails(group, job, job_id, began_ms, times.end_ms):
            return
        job.last_ms = job.ready_ms = times.end_ms
        job.done += 1
        if not is_first:
            job.judge(spent_ms, alone_ms)
        if job.done == job.limit:
            self._at(times.end_ms, _DEPART, partial(self._depart, job_id))

    def _fails(self, group: Group, job: Job, job_id: JobId, began_ms: int, end_ms: int) -> bool:
        """Whether the iteration is lost to a failure; the job is back after its repair then."""
        failures = self.options.failures
        if failures is None or failures.next_ms(job.rng) > end_ms - began_ms:
            return False
        away_s = failures.detect_s + failures.restart_s
        job.ready_ms = end_ms + round(1000 * away_s)
        job.last_ms = None
        job.lost += 1
        self._failures += 1
        group.recurrence.lose(job_id, back_ms=job.ready_ms)
        return True

    def _depart(self, job_id: JobId) -> None:
        job = self.jobs[job_id]
        self.present.discard(job_id)
        group_id = self.index.group_of(job_id).id
        self.index.remove(job_id)
        self.observed.forget(job_id)
        del self._residents[job_id]
        self.settle({group_id})
        waiting, self._waiting = self._waiting, []
        self._waiting += [other for other in waiting if not self._place(other)]
        self._outcomes.append(
            JobOutcome(
                job_id=job_id,
                arrival_s=job.sim.arrival_s,
                started_s=job.started_ms / 1000,
                ended_s=self.now_ms / 1000,
                iterations=job.done,
                judged=job.judged,
                within=job.within[0],
                within_submitted=job.within[1],
                within_relative=job.within[2],
                slowdown=job.spent_ms / job.alone_ms if job.alone_ms else 1.0,
                moves=job.moves,
                lost_iterations=job.lost,
            )
        )

    # -- answers

    def _react(self, group: Group, version: int) -> None:
        if version == group.version and len(group.members) > 0:
            answers.react(self, group)

    def _regroup(self) -> None:
        if self.present - set(self._waiting):
            answers.regroup(self)
        if len(self._outcomes) < len(self.jobs):
            self._at(self.now_ms + round(1000 * self.options.regroup_s), _REACT, self._regroup)
