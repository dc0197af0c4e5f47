"""The slow link between two pools, shared by every group that syncs over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmux.cluster import Cluster, Link, NodePool
from rmux.group import CoExecGroup, Member
from rmux.ids import NodeId
from rmux.place.period import period


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What a link carries on average, bits per second."""

    link: Link
    load_bps: float

    @property
    def fits(self) -> bool:
        return self.load_bps <= self.link.rate_bps


def link_of(members: Sequence[Member], cluster: Cluster) -> Link | None:
    """The link a group syncs over; None when no rate is declared between its pools."""
    placement = members[0].placement
    train = _pool_of(cluster, placement.train_nodes[0])
    rollout = _pool_of(cluster, placement.rollout_nodes[0])
    return cluster.link(train.name, rollout.name)


def sync_bps(members: Sequence[Member], period_s: float) -> float:
    """One copy of each member's weights per period, bits per second."""
    sent_bits = 8.0 * sum(member.profile.sync_bytes for member in members)
    return sent_bits / period_s if period_s > 0 else 0.0


def loads_bps(groups: Iterable[CoExecGroup], cluster: Cluster) -> dict[Link, float]:
    """Load of every declared link by these groups."""
    loads = dict.fromkeys(cluster.links, 0.0)
    for group in groups if cluster.links else ():
        if not group.members:
            continue
        link = link_of(group.members, cluster)
        if link is not None:
            order = [member.job_id for member in group.members]
            period_s = period(group.members, order=order).period_s
            loads[link] += sync_bps(group.members, period_s)
    return loads


def _pool_of(cluster: Cluster, node_id: NodeId) -> NodePool:
    return next(pool for pool in cluster.pools if any(node.id == node_id for node in pool.nodes))
