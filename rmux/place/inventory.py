"""Where each node belongs, which nodes are free, and which an elastic pool could still gain.

Kept up to date in steps of one group, so that no decision has to read the whole cluster.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rmux.cluster import Cluster, Link, Node, NodePool, PoolKind
from rmux.errors import NotFoundError
from rmux.group import ClusterState
from rmux.ids import NodeId, PoolName

_Size = tuple[int, int]
"""(devices, usable bytes): nodes of one size differ in their names only."""


class Stock:
    """The nodes of one pool in their order; the free ones by size, each in that order."""

    def __init__(self, pool: NodePool) -> None:
        self.pool = pool
        self.name, self.kind, self.hardware = pool.name, pool.kind, pool.hardware
        self.usd_per_device_h = pool.usd_per_device_h
        self.order: list[Node] = []
        self.total_devices = self.free_devices = self.largest = 0
        self.drained_devices = 0
        """On drained nodes that nobody holds."""
        self._free: dict[_Size, list[int]] = {}

    def append(self, node: Node, *, free: bool) -> None:
        self.order.append(node)
        self.total_devices += node.num_devices
        self.largest = max(self.largest, node.num_devices)
        if free:
            self.put_back(node, len(self.order) - 1)

    def free(self) -> tuple[Node, ...]:
        """Neither held nor drained, in the order of the pool. Reads them all."""
        return tuple(
            self.order[at] for at in sorted(at for ats in self._free.values() for at in ats)
        )

    def put_back(self, node: Node, position: int) -> None:
        if node.drained:
            self.drained_devices += node.num_devices
            return
        insort(self._free.setdefault((node.num_devices, node.usable_memory_bytes), []), position)
        self.free_devices += node.num_devices

    def take(self, node: Node, position: int) -> None:
        if node.drained:
            self.drained_devices -= node.num_devices
            return
        positions = self._free[node.num_devices, node.usable_memory_bytes]
        del positions[bisect_left(positions, position)]
        self.free_devices -= node.num_devices

    @property
    def can_grow(self) -> int:
        """Nodes that an elastic pool could still gain."""
        return max(0, self.pool.max_nodes - len(self.order)) if self.order else 0

    @property
    def held_devices(self) -> int:
        return self.total_devices - self.free_devices - self.drained_devices

    @property
    def available(self) -> int:
        """Devices that are free, or would be after growing."""
        grown = self.can_grow
        return self.free_devices + (grown * self.order[-1].num_devices if grown else 0)

    def pick(self, count: int, *, need_bytes: int) -> list[int] | None:
        """Positions of the fewest nodes with `count` devices: the smallest that suffice, roomy and
        listed ones first; positions past the last are of nodes that the pool would gain.

        None when there are not enough devices.
        """
        free = {size: at for size, at in self._free.items() if at}
        roomy = {size: at for size, at in free.items() if size[1] >= need_bytes}
        for supply in (roomy, self._grown(roomy, count, need_bytes), free):
            if _holds(supply, count):
                return _fewest(supply, count)
        grown = self._grown(free, count, 0)
        return _fewest(grown, count) if _holds(grown, count) else None

    def _grown(
        self, supply: Mapping[_Size, Sequence[int]], count: int, need_bytes: int
    ) -> Mapping[_Size, Sequence[int]]:
        """With the nodes that the pool could gain, if these have that much memory."""
        new = min(self.can_grow, count)
        if not new or self.order[-1].usable_memory_bytes < need_bytes:
            return supply
        size = (self.order[-1].num_devices, self.order[-1].usable_memory_bytes)
        made = range(len(self.order), len(self.order) + new)
        return {**supply, size: [*supply.get(size, ())[:count], *made]}


def _holds(supply: Mapping[_Size, Sequence[int]], count: int) -> bool:
    return sum(size[0] * len(at) for size, at in supply.items()) >= count


def _fewest(supply: Mapping[_Size, Sequence[int]], count: int) -> list[int]:
    """The largest nodes until one suffices for the rest, then the smallest such; in order."""
    picked: list[int] = []
    used = dict.fromkeys(supply, 0)
    while count > 0:
        left = [size for size, at in supply.items() if used[size] < len(at)]
        enough = [size[0] for size in left if size[0] >= count]
        devices = min(enough) if enough else max(size[0] for size in left)
        alike = [size for size in left if size[0] == devices]
        size = min(alike, key=lambda size: supply[size][used[size]])
        picked.append(supply[size][used[size]])
        used[size] += 1
        count -= devices
    return picked


class Inventory:
    """All pools with their nodes. Nodes are held and released in steps."""

    def __init__(self, cluster: Cluster, *, held: Iterable[NodeId] = ()) -> None:
        self.cluster = cluster
        self.stocks = {pool.name: Stock(pool) for pool in cluster.pools}
        self._by_kind = {
            kind: tuple(stock for stock in self.stocks.values() if stock.kind is kind)
            for kind in PoolKind
        }
        self._links = {
            frozenset((link.source, link.target)): link for link in reversed(cluster.links)
        }
        self._where: dict[NodeId, tuple[Node, Stock, int]] = {}
        self._grew = False
        taken = frozenset(held)
        for pool in cluster.pools:
            stock = self.stocks[pool.name]
            for node in pool.nodes:
                self._where[node.id] = (node, stock, len(stock.order))
                stock.append(node, free=node.id not in taken)

    @staticmethod
    def of(state: ClusterState) -> Inventory:
        return Inventory(
            state.cluster, held=(node for group in state.groups for node in group.nodes)
        )

    def emptied(self) -> Inventory:
        """The same hardware with nobody on it and no node drained."""
        pools = tuple(
            replace(
                stock.pool,
                nodes=tuple(
                    replace(node, drained="") if node.drained else node for node in stock.order
                ),
            )
            for stock in self.stocks.values()
        )
        return Inventory(replace(self.cluster, pools=pools))

    def cluster_now(self) -> Cluster:
        """The cluster with the nodes that its pools gained."""
        if self._grew:
            pools = tuple(
                replace(stock.pool, nodes=tuple(stock.order)) for stock in self.stocks.values()
            )
            self.cluster, self._grew = replace(self.cluster, pools=pools), False
        return self.cluster

    def of_kind(self, kind: PoolKind) -> tuple[Stock, ...]:
        return self._by_kind[kind]

    def node(self, node_id: NodeId) -> Node:
        """NotFoundError when the cluster has no such node."""
        return self._entry(node_id)[0]

    def stock_of(self, node_id: NodeId) -> Stock:
        """NotFoundError when the cluster has no such node."""
        return self._entry(node_id)[1]

    def link(self, one: PoolName, other: PoolName) -> Link | None:
        return self._links.get(frozenset((one, other))) if self._links else None

    def usd_per_h(self, nodes: Iterable[NodeId]) -> float:
        """Hourly price of whole nodes, USD/h."""
        return sum(
            stock.usd_per_device_h * node.num_devices for node, stock, _ in map(self._entry, nodes)
        )

    def pick(self, stock: Stock, count: int, *, need_bytes: int) -> tuple[Node, ...] | None:
        """The nodes of `Stock.pick`; those the pool would gain have a free name of it."""
        picked = stock.pick(count, need_bytes=need_bytes)
        if picked is None:
            return None
        if picked[-1] < len(stock.order) and max(picked) < len(stock.order):
            return tuple([stock.order[at] for at in picked])
        nodes, number = [], len(stock.order)
        for at in picked:
            if at < len(stock.order):
                nodes.append(stock.order[at])
                continue
            number += 1
            while NodeId(f"{stock.name}-{number}") in self._where:
                number += 1
            name = NodeId(f"{stock.name}-{number}")
            last = stock.order[-1]
            nodes.append(replace(last, id=name, host=str(name), gpu_uuids=(), drained=""))
        return tuple(nodes)

    def is_listed(self, node: Node) -> bool:
        """Whether the cluster has the node already."""
        return node.id in self._where

    def hold(self, nodes: Iterable[NodeId]) -> None:
        for node_id in nodes:
            node, stock, position = self._entry(node_id)
            stock.take(node, position)

    def release(self, nodes: Iterable[NodeId]) -> None:
        for node_id in nodes:
            node, stock, position = self._entry(node_id)
            stock.put_back(node, position)

    def gain(self, nodes: Iterable[Node]) -> None:
        """Pools get further nodes, free at first."""
        for node in nodes:
            stock = self.stocks[node.pool]
            self._where[node.id] = (node, stock, len(stock.order))
            stock.append(node, free=True)
            self._grew = True

    def _entry(self, node_id: NodeId) -> tuple[Node, Stock, int]:
        entry = self._where.get(node_id)
        if entry is None:
            raise NotFoundError(f"no node {node_id!r}", hint="rmux pool ls -o wide")
        return entry
