"""Host memory: what the parked members of a group hold on each node, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rmux.cluster import DeviceId, Node
from rmux.estimate import JobProfile
from rmux.group import Member, Placement
from rmux.ids import NodeId


class Nodes(Protocol):
    """What knows nodes by their ids: a cluster or an inventory."""

    def node(self, node_id: NodeId, /) -> Node: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """One node's host memory as planned, bytes."""

    node: NodeId
    resident_bytes: int
    """Of all members placed on the node, parked."""
    switch_bytes: int
    """On top while members park or wake: on devices of their own several do so at once."""
    limit_bytes: int

    @property
    def free_bytes(self) -> int:
        """Negative when it does not fit."""
        return self.limit_bytes - self.resident_bytes - self.switch_bytes

    @property
    def fits(self) -> bool:
        return self.free_bytes >= 0


def memory_of(
    members: Sequence[Member], cluster: Nodes, *, nodes: Iterable[NodeId]
) -> tuple[NodeMemory, ...]:
    """The plan of each of these nodes."""
    return tuple(_node_memory(members, cluster, node) for node in nodes)


def need_bytes(profile: JobProfile, placement: Placement, node: NodeId) -> int:
    """What one job keeps resident on the node."""
    held = 0
    if node in placement.rollout_nodes:
        held += profile.rollout_resident_bytes
    if node in placement.train_nodes:
        held += profile.train_resident_bytes
    return held


def _node_memory(members: Sequence[Member], cluster: Nodes, node: NodeId) -> NodeMemory:
    # The two that switch on a device do so in turn, so a device adds its largest switch; a member
    # on several devices switches on all of them at once and counts once.
    largest: dict[DeviceId, Member] = {}
    for member in members:
        for device in member.placement.devices:
            if device.node != node:
                continue
            known = largest.get(device)
            if known is None or known.profile.switch_peak_bytes < member.profile.switch_peak_bytes:
                largest[device] = member
    peaks = {member.job_id: member.profile.switch_peak_bytes for member in largest.values()}
    return NodeMemory(
        node=node,
        resident_bytes=sum(need_bytes(m.profile, m.placement, node) for m in members),
        switch_bytes=sum(peaks.values()),
        limit_bytes=cluster.node(node).usable_memory_bytes,
    )
