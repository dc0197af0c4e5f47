"""Look-ups in one cluster state, made once per decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmux.cluster import Node, NodePool
from rmux.errors import NotFoundError
from rmux.group import ClusterState
from rmux.ids import NodeId, PoolName


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Where each node belongs and which nodes are free."""

    state: ClusterState
    nodes: Mapping[NodeId, Node]
    pools: Mapping[NodeId, NodePool]
    held: frozenset[NodeId]
    """Nodes that a group pays for."""
    free: Mapping[PoolName, tuple[Node, ...]]
    """Neither held nor drained."""

    @staticmethod
    def of(state: ClusterState) -> Inventory:
        held = frozenset(node for group in state.groups for node in group.nodes)
        return Inventory(
            state=state,
            nodes={node.id: node for pool in state.cluster.pools for node in pool.nodes},
            pools={node.id: pool for pool in state.cluster.pools for node in pool.nodes},
            held=held,
            free={
                pool.name: tuple(
                    node for node in pool.nodes if node.id not in held and not node.drained
                )
                for pool in state.cluster.pools
            },
        )

    def node(self, node_id: NodeId) -> Node:
        """NotFoundError when the cluster has no such node."""
        if node_id not in self.nodes:
            raise NotFoundError(f"no node {node_id!r}", hint="rmux pool ls -o wide")
        return self.nodes[node_id]

    def pool_of(self, node_id: NodeId) -> NodePool:
        """NotFoundError when the cluster has no such node."""
        self.node(node_id)
        return self.pools[node_id]

    def usd_per_h(self, nodes: Iterable[NodeId]) -> float:
        """Hourly price of whole nodes, USD/h."""
        return sum(self.pool_of(node).usd_per_node_h(self.node(node)) for node in nodes)
