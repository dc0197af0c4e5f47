"""Host memory: what the parked members of a group hold on each node, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rmux.cluster import DeviceId, Node
from rmux.estimate import JobProfile
from rmux.group import Member, Placement
from rmux.ids import JobId, NodeId


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMemory:
    """One job's host memory on one node as planned, bytes."""

    job_id: JobId
    name: str
    resident_bytes: int
    """Parked."""
    peak_bytes: int
    """On top while it parks or wakes."""

    @property
    def most_bytes(self) -> int:
        """What it may hold at any time; a runner finds who is above it."""
        return self.resident_bytes + self.peak_bytes


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


def job_memory(member: Member, node: NodeId) -> JobMemory:
    """What admission counts for the member on the node, and its runner allows it there."""
    here = any(device.node == node for device in member.placement.devices)
    return JobMemory(
        job_id=member.job_id,
        name=member.name,
        resident_bytes=need_bytes(member.profile, member.placement, node),
        peak_bytes=member.profile.switch_peak_bytes if here else 0,
    )


def switching_bytes(uses: Iterable[tuple[frozenset[DeviceId], int]]) -> int:
    """Most host memory that parks and wakes take at once, bytes.

    Each use is of one job: its devices on the node and its peak. Two that switch on one device do
    so in turn, so those that switch at once share no device: the heaviest such choice.
    """
    largest: dict[frozenset[DeviceId], int] = {}
    for devices, peak in uses:
        if peak > largest.get(devices, 0) and devices:
            largest[devices] = peak

    def heaviest(rest: list[tuple[frozenset[DeviceId], int]]) -> int:
        if len(rest) < 2:
            return rest[0][1] if rest else 0
        (devices, peak), others = rest[0], rest[1:]
        apart = [use for use in others if not use[0] & devices]
        with_it = peak + heaviest(apart)
        return with_it if len(apart) == len(others) else max(with_it, heaviest(others))

    return heaviest(list(largest.items()))


def _node_memory(members: Sequence[Member], cluster: Nodes, node: NodeId) -> NodeMemory:
    uses = (
        (
            frozenset(device for device in member.placement.devices if device.node == node),
            member.profile.switch_peak_bytes,
        )
        for member in members
        if member.profile.switch_peak_bytes
    )
    return NodeMemory(
        node=node,
        resident_bytes=sum(job_memory(member, node).resident_bytes for member in members),
        switch_bytes=switching_bytes(uses),
        limit_bytes=cluster.node(node).usable_memory_bytes,
    )
