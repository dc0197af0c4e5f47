"""How few rollout nodes a group needs: exact for the small groups that placement makes.

Jobs that share no node in part have the closed form of `period`; where sets overlap in part, or
where much of a loop is off the devices, the true period of the best order decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rmux.cluster import DeviceId
from rmux.estimate import JobProfile
from rmux.group import Member, one_ahead_s, solo_s
from rmux.ids import JobId, NodeId
from rmux.job import JobSpec
from rmux.place.period import CLOSE, Loop, best_round

_TRAIN = frozenset({DeviceId(NodeId("t"), 0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What packing needs of a job; phases with their switch, seconds; bytes per node, parked."""

    job_id: JobId
    rollout_s: float
    train_s: float
    off_device_s: float = 0.0
    solo_s: float
    cap_s: float
    """Longest period that it accepts."""
    rollout_nodes: int = 1
    train_nodes: int = 1
    rollout_bytes: int = 0
    train_bytes: int = 0
    max_staleness: int = 0
    batches: tuple[int, int] | None = None
    """Sequences per optimizer step, and per pass on one train node; None: it keeps its degree."""

    def on_degree(self, train_nodes: int) -> Item | None:
        """The job on another number of train nodes, as `fitted_profile` has it; None where its
        batches cannot be dealt to so many devices. What it accepts stays."""
        if train_nodes == self.train_nodes:
            return self
        if self.batches is None:
            return None
        mini, micro = self.batches
        if mini % (micro * train_nodes):
            return None
        stretch = max(1.0, self.train_nodes / train_nodes)
        train_s = self.train_s * stretch
        loop_s = self.rollout_s + train_s + self.off_device_s
        if self.max_staleness:
            loop_s = one_ahead_s(
                rollout_s=self.rollout_s, train_s=train_s, off_device_s=self.off_device_s
            )
        return replace(
            self,
            train_s=train_s,
            solo_s=loop_s,
            train_nodes=train_nodes,
            train_bytes=math.ceil(self.train_bytes * stretch),
        )

    @staticmethod
    def of(job_id: JobId, spec: JobSpec, profile: JobProfile) -> Item:
        """Of a job whose devices are whole nodes, as those of a replay are."""
        alone_s = solo_s(profile, max_staleness=spec.max_staleness)
        return Item(
            job_id=job_id,
            rollout_s=profile.rollout.planned_s,
            train_s=profile.train.planned_s,
            off_device_s=profile.off_device_s,
            solo_s=alone_s,
            cap_s=spec.slo * alone_s,
            rollout_nodes=spec.rollout.devices,
            train_nodes=spec.train.devices,
            rollout_bytes=profile.rollout_resident_bytes + profile.switch_peak_bytes,
            train_bytes=profile.train_resident_bytes + profile.switch_peak_bytes,
            max_staleness=spec.max_staleness,
            batches=(spec.train.mini_batch, spec.train.micro_batch),
        )

    @staticmethod
    def of_member(member: Member) -> Item:
        """Of a member, on as many rollout nodes as it is placed on and the train nodes it asked
        for, of as many devices as those it has."""
        profile = member.asked_profile or member.profile
        here = len(member.placement.train_nodes)
        per_node = len(member.placement.train) // here
        train_nodes = member.asked_train_devices // per_node or here
        return Item(
            job_id=member.job_id,
            rollout_s=profile.rollout.planned_s,
            train_s=profile.train.planned_s,
            off_device_s=profile.off_device_s,
            solo_s=member.solo_s,
            cap_s=member.slo * member.solo_s,
            rollout_nodes=len(member.placement.rollout_nodes),
            train_nodes=train_nodes,
            rollout_bytes=profile.rollout_resident_bytes + profile.switch_peak_bytes,
            train_bytes=profile.train_resident_bytes + profile.switch_peak_bytes,
            max_staleness=member.max_staleness,
            batches=None
            if member.batches is None
            else (member.batches[0], member.batches[1] * per_node),
        )

    def loop(self, nodes: Sequence[int]) -> Loop:
        return Loop(
            job_id=self.job_id,
            rollout_s=self.rollout_s,
            train_s=self.train_s,
            off_device_s=self.off_device_s,
            rollout=frozenset(DeviceId(NodeId("r"), node) for node in nodes),
            train=_TRAIN,
            max_staleness=self.max_staleness,
        )


Nodes = tuple[int, ...]
"""Numbers of a group's rollout nodes, from 0."""


def fewest_nodes(
    members: Sequence[Item], limit_s: float, *, memory_bytes: int | None = None
) -> int | None:
    """Rollout nodes with which the group keeps `limit_s`; None when no number does."""
    found = on_fewest_nodes(members, limit_s, memory_bytes=memory_bytes)
    return None if found is None else 1 + max(node for nodes in found.values() for node in nodes)


def on_fewest_nodes(
    members: Sequence[Item],
    limit_s: float,
    *,
    pinned: Mapping[JobId, Nodes] | None = None,
    memory_bytes: int | None = None,
) -> Mapping[JobId, Nodes] | None:
    """The rollout nodes of each member, on as few as possible. `pinned` members stay where they
    are; nodes that they do not use are not in the group. None when there is no way.
    """
    pinned = pinned or {}
    free = sorted(
        (member for member in members if member.job_id not in pinned),
        key=lambda member: (-member.rollout_nodes, -member.rollout_s),
    )
    kept = sorted({node for nodes in pinned.values() for node in nodes})
    volume_s = sum(member.rollout_s * member.rollout_nodes for member in members)
    least = max(
        len(kept),
        max(member.rollout_nodes for member in members),
        -int(-volume_s // (limit_s * CLOSE)),
    )
    most = len(kept) + sum(member.rollout_nodes for member in free)
    for count in range(least, most + 1):
        spare = (node for node in itertools.count() if node not in kept)
        nodes = [*kept, *itertools.islice(spare, count - len(kept))]
        search = _Search(members, limit_s, memory_bytes, dict(pinned), nodes)
        if search.place(free):
            return search.where
    return None


class _Search:
    """Free members one by one onto a given number of nodes, alike nodes tried once."""

    def __init__(
        self,
        members: Sequence[Item],
        limit_s: float,
        memory_bytes: int | None,
        where: dict[JobId, Nodes],
        nodes: Sequence[int],
    ) -> None:
        self.members, self.limit_s, self.memory_bytes = members, limit_s, memory_bytes
        self.where = where
        self.load_s = dict.fromkeys(nodes, 0.0)
        self.resident_bytes = dict.fromkeys(nodes, 0)
        self.users: dict[int, tuple[JobId, ...]] = dict.fromkeys(nodes, ())
        for member in members:
            self._use(member, where.get(member.job_id, ()), 1)

    def place(self, free: Sequence[Item]) -> bool:
        if not free:
            return self._keeps_limit()
        member, rest = free[0], free[1:]
        for nodes in self._choices(member):
            self._use(member, nodes, 1)
            self.where[member.job_id] = nodes
            if self.place(rest):
                return True
            self._use(member, nodes, -1)
            del self.where[member.job_id]
        return False

    def _choices(self, member: Item) -> Iterator[Nodes]:
        alike: dict[tuple[JobId, ...], list[int]] = {}
        for node, users in self.users.items():
            room = self.memory_bytes is None or (
                self.resident_bytes[node] + member.rollout_bytes <= self.memory_bytes
            )
            if room and self.load_s[node] + member.rollout_s <= self.limit_s * CLOSE:
                alike.setdefault(users, []).append(node)
        yield from _of_each(list(alike.values()), member.rollout_nodes)

    def _use(self, member: Item, nodes: Nodes, sign: int) -> None:
        for node in nodes:
            self.load_s[node] += sign * member.rollout_s
            self.resident_bytes[node] += sign * member.rollout_bytes
            users = self.users[node]
            self.users[node] = (*users, member.job_id) if sign > 0 else users[:-1]

    def _keeps_limit(self) -> bool:
        if all(load_s <= self.limit_s * CLOSE for load_s in self.load_s.values()) and (
            self._is_simple()
        ):
            return True
        loops = [member.loop(self.where[member.job_id]) for member in self.members]
        return best_round(loops).period_s <= self.limit_s * CLOSE

    def _is_simple(self) -> bool:
        """Node sets equal or disjoint and all time on devices: loads and loops are the period."""
        sets = set(self.where.values())
        return sum(map(len, sets)) == len({node for nodes in sets for node in nodes}) and not any(
            member.off_device_s or member.max_staleness for member in self.members
        )


def _of_each(classes: Sequence[Sequence[int]], count: int) -> Iterator[Nodes]:
    """`count` nodes; from each class of alike ones only the first few, as they are alike."""
    if count == 0:
        yield ()
        return
    if not classes:
        return
    first, rest = classes[0], classes[1:]
    for taken in range(min(count, len(first)), -1, -1):
        for others in _of_each(rest, count - taken):
            yield tuple(sorted((*first[:taken], *others)))
