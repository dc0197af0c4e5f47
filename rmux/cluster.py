"""Hardware facts: pools, nodes, devices, links. No use of them is recorded here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmux.errors import NotFoundError
from rmux.ids import NodeId, PoolName


class PoolKind(StrEnum):
    ROLLOUT = "rollout"
    TRAIN = "train"


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """One GPU, or one set of CPU cores: the `index`-th of its node. Printed 'node/index'."""

    node: NodeId
    index: int

    def __str__(self) -> str:
        return f"{self.node}/{self.index}"

    @staticmethod
    def parse(text: str) -> DeviceId:
        node, _, index = text.rpartition("/")
        return DeviceId(NodeId(node), int(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: NodeId
    pool: PoolName
    host: str
    device_kind: str
    """'cpu', or the catalogue name of the GPU, such as 'H20'."""
    num_devices: int
    cores: tuple[tuple[int, ...], ...] = ()
    """CPU cores of each device; empty tuples leave affinity alone."""
    gpu_uuids: tuple[str, ...] = ()
    host_memory_bytes: int
    reserved_memory_bytes: int = 0
    drained: str = ""
    """Why nothing new is placed here; empty when it may."""

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        return tuple(DeviceId(self.id, index) for index in range(self.num_devices))

    @property
    def usable_memory_bytes(self) -> int:
        return self.host_memory_bytes - self.reserved_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    name: PoolName
    kind: PoolKind
    hardware: str
    """Entry of the hardware catalogue: 'cpu', 'H20', 'H800' …"""
    usd_per_device_h: float
    nodes: tuple[Node, ...]
    max_nodes: int = 0
    """Nodes that the pool may grow to, made like its last one as placements need them; 0: it has
    what is listed."""

    def usd_per_node_h(self, node: Node) -> float:
        return self.usd_per_device_h * node.num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between two pools; both directions have this rate."""

    source: PoolName
    target: PoolName
    rate_bps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    name: str
    quota_usd_per_h: float = 0.0
    """Most that its jobs may cost together; 0 for no limit."""
    weight: float = 1.0
    """Share of what is free among tenants whose jobs wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the cluster is shared; the defaults are the paper's semantics with the interval rule."""

    rule: str = "interval"
    """'interval', or 'paper': Algorithm 1 of RollMux to the letter."""
    margin: float = 0.0
    """Fraction by which planned periods of shared groups are taken longer."""
    max_members: int = 0
    """Jobs in one group; 0 for no limit."""
    ageing_s: float = 0.0
    """Waiting time that counts as one step of priority; 0 for none."""
    rebalance: bool = False
    """Whether jobs are moved when that saves money."""
    payback_s: float = 3600.0
    """A move must earn its price within this time."""
    drift_quantile: float = 0.0
    """Quantile of observed phase times that is held against the plan; 0 for no tracking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    pools: tuple[NodePool, ...]
    links: tuple[Link, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    policy: Policy = Policy()

    def pool(self, name: str) -> NodePool:
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise NotFoundError(f"no pool {name!r}", hint="rmux pool ls")

    def of_kind(self, kind: PoolKind) -> tuple[NodePool, ...]:
        return tuple(pool for pool in self.pools if pool.kind is kind)

    def node(self, node_id: str) -> Node:
        for pool in self.pools:
            for node in pool.nodes:
                if node.id == node_id:
                    return node
        raise NotFoundError(f"no node {node_id!r}", hint="rmux pool ls -o wide")

    def link(self, source: PoolName, target: PoolName) -> Link | None:
        for link in self.links:
            if {link.source, link.target} == {source, target}:
                return link
        return None
