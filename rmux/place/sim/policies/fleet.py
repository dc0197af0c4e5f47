"""Groups of jobs on numbered nodes, for policies that place without a plan.

A group has rollout and train nodes and takes jobs up to a number; a job is pinned to some of them.
Members take turns in the order in which they came, and every one pays the true period of that
order. Nodes that nobody uses any more are given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.place.period import Loop, period_of
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.policies.tally import Holding, Tally
from rmux.place.sim.world import World

Nodes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seat:
    """A job and the nodes it is pinned to."""

    job: SimJob
    rollout: Nodes
    train: Nodes

    @property
    def rollout_use_s(self) -> float:
        """Node-seconds per iteration."""
        return self.job.profile.rollout.planned_s * len(self.rollout)

    @property
    def train_use_s(self) -> float:
        return self.job.profile.train.planned_s * len(self.train)

    @property
    def loop(self) -> Loop:
        profile = self.job.profile
        return Loop(
            job_id=self.job.id,
            rollout_s=profile.rollout.planned_s,
            train_s=profile.train.planned_s,
            off_device_s=profile.off_device_s,
            rollout=frozenset(DeviceId(NodeId(f"r{node}"), 0) for node in self.rollout),
            train=frozenset(DeviceId(NodeId(f"t{node}"), 0) for node in self.train),
            max_staleness=self.job.spec.max_staleness,
        )


@dataclass(slots=True)
class Group:
    key: int
    seats: list[Seat] = field(default_factory=list)
    period_s: float = 0.0

    @property
    def rollout(self) -> Nodes:
        """Its nodes, each once, in order of first use."""
        return tuple(dict.fromkeys(node for seat in self.seats for node in seat.rollout))

    @property
    def train(self) -> Nodes:
        return tuple(dict.fromkeys(node for seat in self.seats for node in seat.train))

    @property
    def busy(self) -> float:
        """Share of its node time in use."""
        used_s = sum(seat.rollout_use_s + seat.train_use_s for seat in self.seats)
        return used_s / (self.period_s * (len(self.rollout) + len(self.train)))

    def rollout_load_s(self, node: int) -> float:
        """Seconds per round that a rollout node is in use."""
        seats = self.seats
        return sum(one.job.profile.rollout.planned_s for one in seats if node in one.rollout)

    def train_load_s(self, node: int) -> float:
        return sum(one.job.profile.train.planned_s for one in self.seats if node in one.train)


class Fleet:
    """All groups; `max_members` 0 is no limit."""

    def __init__(self, world: World, *, max_members: int) -> None:
        self.world, self.max_members = world, max_members
        self._tally = Tally(world)
        self._groups: dict[int, Group] = {}
        self._group_of: dict[JobId, int] = {}
        self._numbers = count()

    def groups(self) -> Sequence[Group]:
        return list(self._groups.values())

    def fits(self, group: Group, job: SimJob, rollout: Nodes, train: Nodes) -> bool:
        """Whether the job may join on these nodes: their number, memory, and the group's size."""
        if self.max_members and len(group.seats) >= self.max_members:
            return False
        return self.rollout_fits(group, job, rollout) and self.train_fits(group, job, train)

    def rollout_fits(self, group: Group, job: SimJob, nodes: Nodes) -> bool:
        if len(nodes) < job.spec.rollout.devices:
            return False
        free_bytes = self.world.host_memory_bytes - job.profile.rollout_resident_bytes
        return all(
            sum(s.job.profile.rollout_resident_bytes for s in group.seats if node in s.rollout)
            <= free_bytes
            for node in nodes
        )

    def train_fits(self, group: Group, job: SimJob, nodes: Nodes) -> bool:
        if len(nodes) < job.spec.train.devices:
            return False
        free_bytes = self.world.host_memory_bytes - job.profile.train_resident_bytes
        return all(
            sum(s.job.profile.train_resident_bytes for s in group.seats if node in s.train)
            <= free_bytes
            for node in nodes
        )

    def join(self, group: Group, job: SimJob, rollout: Nodes, train: Nodes) -> None:
        group.seats.append(Seat(job, rollout, train))
        self._groups[group.key] = group
        self._group_of[job.id] = group.key
        self._refresh(group)

    def scale(self, group: Group, job: SimJob, train: Nodes) -> bool:
        """Let the job join on new rollout nodes; False when the pool has too few."""
        if not self._tally.has_room(job.spec.rollout.devices, 0):
            return False
        self.join(group, job, self._new(job.spec.rollout.devices), train)
        return True

    def found(self, job: SimJob) -> bool:
        """Give the job a group of new nodes; False when the pools have too few."""
        rollout, train = job.spec.rollout.devices, job.spec.train.devices
        if not self._tally.has_room(rollout, train):
            return False
        self.join(Group(next(self._numbers)), job, self._new(rollout), self._new(train))
        return True

    def leave(self, departed: Iterable[JobId]) -> None:
        changed: dict[int, Group] = {}
        for job_id in departed:
            group = self._groups[self._group_of.pop(job_id)]
            group.seats = [seat for seat in group.seats if seat.job.id != job_id]
            changed[group.key] = group
        for key, group in changed.items():
            self._tally.drop(key)
            if group.seats:
                self._refresh(group)
            else:
                del self._groups[key]

    def standing(self, placed: dict[JobId, str]) -> Standing:
        return self._tally.standing(placed=placed)

    def _new(self, number: int) -> Nodes:
        return tuple(next(self._numbers) for _ in range(number))

    def _refresh(self, group: Group) -> None:
        seats = group.seats
        order = [seat.job.id for seat in seats]
        group.period_s = period_of([seat.loop for seat in seats], order=order).period_s
        self._tally.put(
            group.key,
            Holding(
                rollout=len(group.rollout),
                train=len(group.train),
                rollout_busy=sum(seat.rollout_use_s for seat in seats) / group.period_s,
                train_busy=sum(seat.train_use_s for seat in seats) / group.period_s,
                iteration_s=dict.fromkeys(order, group.period_s),
                used={seat.job.id: seat.rollout_use_s + seat.train_use_s for seat in seats},
            ),
        )


class Choice(Protocol):
    """Which group a job goes to, and which of its nodes it gets."""

    def groups(self, groups: Sequence[Group]) -> Iterable[Group | None]:
        """In order of choice; None is a new one."""
        ...

    def nodes(self, group: Group, job: SimJob) -> tuple[Nodes, Nodes]:
        """Rollout and train nodes of the group; fewer than the job asks for if it has no more."""
        ...


class Unplanned:
    """A policy that puts jobs into groups and looks at no SLO.

    Two readings of the paper, which says neither. Provisioning: one group is chosen, and what does
    not fit there is given new nodes, rollout nodes in that group where the rest fits, else a group
    of its own. Packed: the choice is among the groups in which the job fits, and only when there is
    none new nodes are taken.
    """

    def __init__(self, world: World, choice: Choice, *, max_members: int, packed: bool) -> None:
        self.fleet, self.packed = Fleet(world, max_members=max_members), packed
        self._choice = choice
        self._waiting: dict[JobId, SimJob] = {}

    def step(
        self, now_s: float, *, arrived: Sequence[SimJob], departed: Sequence[JobId]
    ) -> Standing:
        self.fleet.leave(departed)
        queue = [*self._waiting.values(), *arrived] if departed else list(arrived)
        placed: dict[JobId, str] = {}
        for job in sorted(queue, key=lambda one: -one.spec.priority):
            how = self._packed(job) if self.packed else self._provisioned(job)
            if how:
                placed[job.id] = how
                self._waiting.pop(job.id, None)
            else:
                self._waiting[job.id] = job
        return self.fleet.standing(placed)

    def _provisioned(self, job: SimJob) -> str:
        """How it was placed; empty when it must wait."""
        fleet = self.fleet
        group = next(iter(self._choice.groups(fleet.groups())), None)
        if group is None:
            return "isolated group" if fleet.found(job) else ""
        rollout, train = self._choice.nodes(group, job)
        if fleet.fits(group, job, rollout, train):
            fleet.join(group, job, rollout, train)
            return "direct packing"
        is_full = fleet.max_members and len(group.seats) >= fleet.max_members
        if not is_full and fleet.train_fits(group, job, train):
            return "rollout scaling" if fleet.scale(group, job, train) else ""
        return "isolated group" if fleet.found(job) else ""

    def _packed(self, job: SimJob) -> str:
        for group in self._choice.groups(self.fleet.groups()):
            if group is None:
                continue
            rollout, train = self._choice.nodes(group, job)
            if self.fleet.fits(group, job, rollout, train):
                self.fleet.join(group, job, rollout, train)
                return "direct packing"
        return "isolated group" if self.fleet.found(job) else ""
