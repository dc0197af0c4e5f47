"""rmux itself under replay: the same index, rule and rebalancing that place live jobs.

`rollmux` moves jobs when a departure or an arrival makes that pay; `rollmux-static` never does;
`rollmux-paper` is Algorithm 1 of RollMux, which never does either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rmux.cluster import Policy as Sharing
from rmux.errors import InfeasibleError, NotFoundError
from rmux.group import ClusterState, CoExecGroup
from rmux.ids import GroupId, JobId
from rmux.place.index import Index
from rmux.place.period import period
from rmux.place.rebalance import EXACT_UP_TO, propose, steps
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.world import World
from rmux.place.target import Targets


@dataclass(frozen=True, slots=True)
class _Load:
    """What one group holds and uses: devices, of both pools."""

    rollout: int
    train: int
    rollout_busy: float
    train_busy: float


class RollMux:
    """`sharing` says rule, margin, group size and whether jobs are moved."""

    def __init__(self, world: World, *, sharing: Sharing) -> None:
        self.world, self.sharing = world, sharing
        self._cluster = replace(world.cluster, policy=sharing)
        self._index = Index.of(ClusterState(revision=0, cluster=self._cluster, groups=()))
        self._targets = Targets(self._index, most_jobs=EXACT_UP_TO)
        self._jobs: dict[JobId, SimJob] = {}
        self._waiting: list[SimJob] = []
        self._iteration_s: dict[JobId, float] = {}
        self._shares: dict[JobId, float] = {}
        self._loads: dict[GroupId, _Load] = {}

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing:
        changed: set[GroupId] = set()
        for job_id in departed:
            changed.add(self._index.group_of(job_id).id)
            self._index.remove(job_id)
            del self._jobs[job_id], self._iteration_s[job_id], self._shares[job_id]
        self._jobs.update((job.id, job) for job in arrived)
        # Who waits was refused by what stands; only what left can have made room.
        queue = [*self._waiting, *arrived] if departed else list(arrived)
        placed = self._place(queue, changed)
        lost_s = self._move(changed) if self.sharing.rebalance else {}
        for group_id in changed:
            self._refresh(group_id)
        loads = self._loads.values()
        return Standing(
            usd_per_h=self._index.usd_per_h(),
            iteration_s=self._iteration_s,
            usd_per_h_by_job=self._shares,
            rollout_devices=sum(load.rollout for load in loads),
            train_devices=sum(load.train for load in loads),
            rollout_busy=sum(load.rollout_busy for load in loads),
            train_busy=sum(load.train_busy for load in loads),
            placed=placed,
            moves=len(lost_s),
            lost_s=lost_s,
        )

    def groups(self) -> tuple[CoExecGroup, ...]:
        return self._index.groups()

    def _place(self, queue: list[SimJob], changed: set[GroupId]) -> Mapping[JobId, str]:
        """Admit who can be, the most urgent first; the others wait, and do not hold up the rest."""
        placed: dict[JobId, str] = {}
        waiting = {job.id: job for job in self._waiting}
        for job in sorted(queue, key=lambda one: -one.spec.priority):
            decision = self._index.decide(spec=job.spec, profile=job.profile, job_id=job.id)
            if decision.never_fits:
                raise InfeasibleError(f"job {job.spec.name} never fits: {decision.reason.message}")
            if decision.assignment is None or decision.best is None:
                waiting[job.id] = job
                continue
            waiting.pop(job.id, None)
            placed[job.id] = str(decision.best.kind)
            changed.add(self._index.apply(decision.assignment, spec=job.spec, profile=job.profile))
        self._waiting = list(waiting.values())
        return placed

    def _move(self, changed: set[GroupId]) -> Mapping[JobId, float]:
        """Move jobs where that pays back; seconds that it takes from each."""
        proposed = propose(self._index, targets=self._targets)
        lost_s: dict[JobId, float] = {}
        for leaves, move in steps(proposed.moves):
            job = self._jobs[move.job_id]
            changed.add(move.source)
            if leaves:
                self._index.remove(job.id)
                continue
            changed.add(self._index.apply(move.assignment, spec=job.spec, profile=job.profile))
            lost_s[job.id] = lost_s.get(job.id, 0.0) + move.price_s
        return lost_s

    def _refresh(self, group_id: GroupId) -> None:
        """Take over what a group that changed now plans, costs and uses."""
        group = self._found(group_id)
        if group is None:
            self._loads.pop(group_id, None)
            return
        turns = group.round
        period_s = period(group.members, order=turns).period_s
        rollout_s = train_s = 0.0
        held_s: dict[JobId, float] = {}
        for member in group.members:
            profile, placement, times = member.profile, member.placement, turns.count(member.job_id)
            self._iteration_s[member.job_id] = period_s / times
            own_rollout_s = times * profile.rollout.planned_s * len(placement.rollout)
            own_train_s = times * profile.train.planned_s * len(placement.train)
            held_s[member.job_id] = own_rollout_s + own_train_s
            rollout_s += own_rollout_s
            train_s += own_train_s
        num_train = len(group.members[0].placement.train_nodes)
        load = _Load(
            rollout=len(group.nodes) - num_train,
            train=num_train,
            rollout_busy=rollout_s / period_s,
            train_busy=train_s / period_s,
        )
        self._loads[group_id] = load
        usd_per_h = load.rollout * self.world.rollout_usd_per_node_h
        usd_per_h += load.train * self.world.train_usd_per_node_h
        usd_per_held = usd_per_h / (rollout_s + train_s)
        self._shares.update((job_id, usd_per_held * own_s) for job_id, own_s in held_s.items())

    def _found(self, group_id: GroupId) -> CoExecGroup | None:
        try:
            return self._index.group(group_id)
        except NotFoundError:
            return None
