"""Which division of standing jobs into groups is the cheapest, moves included.

A part of the division has a home, a standing group whose members among it stay on their nodes, or
none: then all its jobs move. Each group is the home of at most one part. Prices are per hour; the
price of a move is spread over the payback time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rmux.cluster import PoolKind
from rmux.group import CoExecGroup, Member, nodes_of
from rmux.ids import GroupId, JobId, NodeId, PoolName
from rmux.place.index import Index
from rmux.place.nodes_needed import Item, Nodes, on_fewest_nodes
from rmux.place.packing import Column, Columns, Prices, partition, shared_limit_s

PriceOfMove = Callable[[Member], float | None]
"""USD; None for a job that stays."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One part of the division, on its group's nodes."""

    jobs: tuple[JobId, ...]
    home: GroupId | None
    rollout_nodes: int
    train_nodes: int
    usd_per_h: float
    """Of its nodes, and of its moves over the payback time."""
    where: Mapping[JobId, Nodes] = field(default_factory=dict)
    """Rollout nodes of each job by number, those of the home in the order of `rollout_nodes`."""


class Targets:
    """Keeps the feasible groups of the jobs it has seen. For whole nodes of one pair of pools."""

    def __init__(self, index: Index, *, most_jobs: int) -> None:
        self.most_jobs = most_jobs
        self._columns: Columns | None = None
        self._seen: dict[JobId, Item] = {}

    def cheapest(
        self, index: Index, *, price_usd: PriceOfMove, payback_s: float
    ) -> tuple[Target, ...] | None:
        """The cheapest division; None where only single moves can be looked for: too many jobs,
        jobs on parts of nodes, links to keep, several pools."""
        groups = index.groups()
        members = [member for group in groups for member in group.members]
        prices = _prices(index, groups)
        if len(members) > self.most_jobs or prices is None:
            return None
        columns = self._current(index, members, prices)
        found = _Search(columns, groups, price_usd, payback_s / 3600)
        choices = list(found.choices())
        chosen = partition(
            [choice.jobs for choice in choices],
            [choice.usd_per_h for choice in choices],
            at_most_once=[choice.home for choice in choices],
        )
        return tuple(found.with_nodes(choices[number]) for number in chosen.chosen)

    def _current(self, index: Index, members: list[Member], prices: Prices) -> Columns:
        policy = index.policy
        columns = self._columns
        now = {member.job_id: Item.of_member(member) for member in members}
        degrees = {item.train_nodes for item in now.values()}
        if columns is None or columns.prices != prices or not degrees <= set(columns.degrees):
            columns = Columns(
                prices,
                max_members=policy.max_members or 5,
                margin=policy.margin,
                degrees=tuple(sorted(degrees)),
            )
            self._columns, self._seen = columns, {}
        for job_id, item in tuple(self._seen.items()):
            if now.get(job_id) != item:
                columns.remove(job_id)
                del self._seen[job_id]
        for job_id, item in now.items():
            if job_id not in self._seen:
                columns.add(item)
                self._seen[job_id] = item
        return columns


class _Search:
    def __init__(
        self,
        columns: Columns,
        groups: tuple[CoExecGroup, ...],
        price_usd: PriceOfMove,
        payback_h: float,
    ) -> None:
        self.columns, self.prices = columns, columns.prices
        self.groups = {group.id: group for group in groups}
        self.where = {m.job_id: group.id for group in groups for m in group.members}
        prices = {m.job_id: price_usd(m) for group in groups for m in group.members}
        self.move_usd_per_h = {
            job: None if price is None else price / payback_h for job, price in prices.items()
        }
        self.nodes = {group.id: _numbered(group) for group in groups}

    def choices(self) -> Iterator[Target]:
        """Parts of standing groups as they stand, and feasible groups with each possible home."""
        for group in self.groups.values():
            jobs = [member.job_id for member in group.members]
            for size in range(1, len(jobs) + 1):
                for part in itertools.combinations(jobs, size):
                    yield self._standing(group, part)
        for column in self.columns:
            if not column.needed:
                continue
            homes = {self.where[job] for job in column.jobs}
            yield from self._new(column, len(homes))
            for home in sorted(homes):
                if len(homes) > 1:
                    yield from self._at_home(column, home)

    def _standing(self, group: CoExecGroup, part: tuple[JobId, ...]) -> Target:
        nodes = self.nodes[group.id]
        count = len({node for job in part for node in nodes[job]})
        train_nodes = len(group.members[0].placement.train_nodes)
        usd_per_h = count * self.prices.rollout_usd_per_h
        usd_per_h += train_nodes * self.prices.train_usd_per_h
        return Target(part, group.id, count, train_nodes, usd_per_h)

    def _new(self, column: Column, num_homes: int) -> Iterator[Target]:
        """All of them to new nodes."""
        if num_homes == 1:
            group = self.groups[self.where[column.jobs[0]]]
            if len(group.members) == len(column.jobs):
                now = self._standing(group, column.jobs)
                if column.usd_per_h >= now.usd_per_h:
                    return
        moves = self._moves(column.jobs, None)
        if moves is not None:
            yield Target(
                column.jobs,
                None,
                column.rollout_nodes,
                column.train_nodes,
                column.usd_per_h + moves,
            )

    def _at_home(self, column: Column, home: GroupId) -> Iterator[Target]:
        moves = self._moves(column.jobs, home)
        degree = len(self.groups[home].members[0].placement.train_nodes)
        if moves is None or degree != column.train_nodes:
            return
        pinned = {job: nodes for job, nodes in self.nodes[home].items() if job in column.jobs}
        items = [self.columns.on_degree(job, degree) for job in column.jobs]
        limit_s = shared_limit_s(items, margin=self.columns.margin)
        found = on_fewest_nodes(
            items, limit_s, pinned=pinned, memory_bytes=self.prices.host_memory_bytes
        )
        if found is None:
            return
        count = len({node for nodes in found.values() for node in nodes})
        usd_per_h = count * self.prices.rollout_usd_per_h
        usd_per_h += column.train_nodes * self.prices.train_usd_per_h
        yield Target(column.jobs, home, count, column.train_nodes, usd_per_h + moves, found)

    def with_nodes(self, target: Target) -> Target:
        """With the nodes of a part that has no home."""
        if target.home is not None:
            return target
        items = [self.columns.on_degree(job, target.train_nodes) for job in target.jobs]
        limit_s = shared_limit_s(items, margin=self.columns.margin)
        memory_bytes = self.prices.host_memory_bytes
        found = on_fewest_nodes(items, limit_s, memory_bytes=memory_bytes)
        return replace(target, where=found or {})

    def _moves(self, jobs: tuple[JobId, ...], home: GroupId | None) -> float | None:
        total = 0.0
        for job in jobs:
            if self.where[job] == home:
                continue
            price = self.move_usd_per_h[job]
            if price is None:
                return None
            total += price
        return total


def rollout_nodes(group: CoExecGroup) -> tuple[NodeId, ...]:
    """Those that members are placed on, in the order of the members."""
    return nodes_of(device for member in group.members for device in member.placement.rollout)


def _numbered(group: CoExecGroup) -> Mapping[JobId, Nodes]:
    """The rollout nodes of each member by number."""
    nodes = rollout_nodes(group)
    return {
        member.job_id: tuple(nodes.index(node) for node in member.placement.rollout_nodes)
        for member in group.members
    }


def _prices(index: Index, groups: tuple[CoExecGroup, ...]) -> Prices | None:
    """Of the nodes that the groups hold, where they are alike and taken whole."""
    known = index.known
    if index.links is not None:
        return None
    seen: dict[PoolKind, set[tuple[PoolName, int, int]]] = {kind: set() for kind in PoolKind}
    for member in (member for group in groups for member in group.members):
        if member.max_repeats > 1:
            return None
        placement = member.placement
        for kind, devices, ids in (
            (PoolKind.ROLLOUT, placement.rollout, placement.rollout_nodes),
            (PoolKind.TRAIN, placement.train, placement.train_nodes),
        ):
            nodes = [known.node(node) for node in ids]
            if sum(node.num_devices for node in nodes) != len(devices):
                return None
            seen[kind] |= {(n.pool, n.num_devices, n.usable_memory_bytes) for n in nodes}
    if any(len(found) != 1 for found in seen.values()):
        return None
    some = groups[0].members[0].placement
    return Prices(
        rollout_usd_per_h=known.usd_per_h(some.rollout_nodes[:1]),
        train_usd_per_h=known.usd_per_h(some.train_nodes[:1]),
        host_memory_bytes=min(memory for found in seen.values() for _, _, memory in found),
    )
