"""Which division of standing jobs into groups is the cheapest, moves included.

A part of the division has a home, a standing group whose members among it stay on their nodes, or
none: then all its jobs move. Each group is the home of at most one part. Prices are per hour; the
price of a move is spread over the payback time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rmux.cluster import PoolKind
from rmux.errors import InternalError
from rmux.group import CoExecGroup, Member, nodes_of
from rmux.ids import GroupId, JobId, NodeId, PoolName
from rmux.place.index import Index
from rmux.place.nodes_needed import Item, Nodes, on_fewest_nodes
from rmux.place.packing import Column, Columns, Prices, partition, shared_limit_s

MOST_COLUMNS = 1500
"""Feasible groups that are chosen from at once."""
SOLVE_S = 0.5
GAP = 0.005
"""Of the price: a division this close to the cheapest will do."""

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
        self.most_jobs = self._most_jobs = most_jobs
        self._columns: Columns | None = None
        self._seen: dict[JobId, Item] = {}
        self._calls = 0

    def cheapest(
        self, index: Index, *, price_usd: PriceOfMove, payback_s: float
    ) -> tuple[Target, ...] | None:
        """The cheapest division; None where only single moves can be looked for: jobs on parts of
        nodes, links to keep, several pools.

        Where there are too many jobs, or too many ways to group them, it is that of some groups,
        others from one call to the next; the rest stays as it is.
        """
        groups = index.groups()
        prices = _prices(index, groups)
        if prices is None:
            return None
        most = self.most_jobs
        while True:
            some = groups if _count(groups) <= most else self._some(index, groups, most)
            columns = self._columns_of(index, some, prices, keep=some is groups)
            if not columns.overflown:
                break
            if some is groups:
                self._columns = None
                self.most_jobs = _count(groups) - 1  # as many would be too many again
            most = _count(some) * 3 // 4
        # Fewer jobs, or others, may be listed again.
        self.most_jobs = min(self.most_jobs + (some is not groups), self._most_jobs)
        self._calls += 1
        if len(some) < 2:
            return ()
        found = _Search(columns, some, price_usd, payback_s / 3600)
        choices = list(found.choices())
        try:
            chosen = partition(
                [choice.jobs for choice in choices],
                [choice.usd_per_h for choice in choices],
                at_most_once=[choice.home for choice in choices],
                time_limit_s=SOLVE_S,
                gap=GAP,
            )
        except InternalError:
            return ()  # not in time: everybody stays
        return tuple(found.with_nodes(choices[number]) for number in chosen.chosen)

    def _some(
        self, index: Index, groups: tuple[CoExecGroup, ...], most: int
    ) -> tuple[CoExecGroup, ...]:
        """Those with the fewest jobs for their price, which are the ones to be dissolved, beside as
        many jobs of others, in turn."""
        known = index.known
        by_price = sorted(
            groups, key=lambda group: (len(group.members) / known.usd_per_h(group.nodes), group.id)
        )
        start = self._calls % len(groups)
        others = [*groups[start:], *groups[:start]]
        chosen: dict[GroupId, CoExecGroup] = {}
        for candidates, room in ((by_price, most // 2), (others, most)):
            for group in candidates:
                if _count(chosen.values()) + len(group.members) > room:
                    break
                chosen[group.id] = group
        return tuple(chosen.values())

    def _columns_of(
        self, index: Index, groups: tuple[CoExecGroup, ...], prices: Prices, *, keep: bool
    ) -> Columns:
        """Of the jobs in these groups; those of all groups are kept for the next call."""
        policy = index.policy
        items = {m.job_id: Item.of_member(m) for group in groups for m in group.members}
        degrees = {item.train_nodes for item in items.values()}
        columns, seen = (self._columns, self._seen) if keep else (None, {})
        if columns is None or columns.prices != prices or not degrees <= set(columns.degrees):
            columns = Columns(
                prices,
                max_members=policy.max_members or 5,
                margin=policy.margin,
                most=MOST_COLUMNS,
                degrees=tuple(sorted(degrees)),
            )
            seen = {}
        for job_id, item in tuple(seen.items()):
            if items.get(job_id) != item:
                columns.remove(job_id)
                del seen[job_id]
        for job_id, item in items.items():
            if job_id not in seen:
                columns.add(item)
                seen[job_id] = item
                if columns.overflown:
                    break
        if keep:
            self._columns, self._seen = columns, seen
        return columns


def _count(groups: Iterable[CoExecGroup]) -> int:
    return sum(len(group.members) for group in groups)


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
