"""Co-execution groups and the immutable snapshot that placement decides on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmux.cluster import Cluster, DeviceId, Node
from rmux.errors import NotFoundError
from rmux.estimate import JobProfile
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Job, JobSpec, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices a job is pinned to."""

    rollout: tuple[DeviceId, ...]
    train: tuple[DeviceId, ...]

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        return self.rollout + self.train

    @property
    def rollout_nodes(self) -> tuple[NodeId, ...]:
        return nodes_of(self.rollout)

    @property
    def train_nodes(self) -> tuple[NodeId, ...]:
        return nodes_of(self.train)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One job inside a group, with what the plan needs of it."""

    job_id: JobId
    name: str
    slo: float
    profile: JobProfile
    placement: Placement
    state: JobState = JobState.PLACED
    max_staleness: int = 0
    max_repeats: int = 1
    tenant: str = ""
    priority: int = 0
    movable: bool = True

    @property
    def solo_s(self) -> float:
        """Planned seconds per iteration alone on these devices.

        One step off-policy, the next rollout runs beside this train: two iterations then overlap,
        so a loop of rollout, train and sync gives two per turn, and each device gives one per use.
        """
        if not self.max_staleness:
            return self.profile.solo_s
        rollout_s, train_s = self.profile.rollout.planned_s, self.profile.train.planned_s
        return max(rollout_s, train_s, self.profile.solo_s / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoExecGroup:
    """Jobs that share nodes phase by phase; `members` stand in rotation order."""

    id: GroupId
    members: tuple[Member, ...]
    nodes: tuple[NodeId, ...]
    """All nodes the group pays for, rollout and train."""
    rotation_version: int = 1
    desired: str = "run"
    """'run' or 'down'."""
    turns: tuple[JobId, ...] = ()
    """The jobs of one round in their cyclic order; one with k iterations a round stands k times.
    Empty: every member once, in the order of `members`."""

    @property
    def round(self) -> tuple[JobId, ...]:
        """`turns` as they hold: without who left, who joined at the end."""
        here = {member.job_id for member in self.members}
        kept = tuple(job for job in self.turns if job in here)
        return kept + tuple(m.job_id for m in self.members if m.job_id not in kept)

    def member(self, job_id: JobId) -> Member:
        for member in self.members:
            if member.job_id == job_id:
                return member
        raise NotFoundError(f"job {job_id} is not in group {self.id}")

    def usd_per_h(self, cluster: Cluster) -> float:
        return cost_usd_per_h(self.nodes, cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A decision as the store applies it: who goes where, and which nodes the group gains."""

    job_id: JobId
    group_id: GroupId | None
    """None makes a new group."""
    placement: Placement
    added_nodes: tuple[NodeId, ...] = ()
    removed_nodes: tuple[NodeId, ...] = ()
    turns: tuple[JobId, ...] = ()
    """The group's round from now on; empty appends the job to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    job: Job
    spec: JobSpec
    profile: JobProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """One consistent view. `revision` counts changes of pools, groups and placements only."""

    revision: int
    cluster: Cluster
    groups: tuple[CoExecGroup, ...]
    pending: tuple[PendingJob, ...] = ()

    def group(self, group_id: str) -> CoExecGroup:
        for group in self.groups:
            if group.id == group_id:
                return group
        raise NotFoundError(f"no group {group_id!r}", hint="rmux group ls")

    def free_nodes(self, pool_name: str) -> tuple[Node, ...]:
        """Nodes of a pool that no group holds and nobody drained."""
        held = {node for group in self.groups for node in group.nodes}
        pool = self.cluster.pool(pool_name)
        return tuple(node for node in pool.nodes if node.id not in held and not node.drained)


def member_of(spec: JobSpec, profile: JobProfile, *, job_id: JobId, placement: Placement) -> Member:
    """The member that a job becomes at this placement."""
    return Member(
        job_id=job_id,
        name=spec.name,
        slo=spec.slo,
        profile=profile,
        placement=placement,
        max_staleness=spec.max_staleness,
        max_repeats=spec.max_repeats,
        tenant=spec.tenant,
        priority=spec.priority,
        movable=spec.movable,
    )


def nodes_of(devices: Iterable[DeviceId]) -> tuple[NodeId, ...]:
    """Each node once, in order of first appearance."""
    return tuple(dict.fromkeys(device.node for device in devices))


def cost_usd_per_h(nodes: Iterable[NodeId], cluster: Cluster) -> float:
    """Hourly price of whole nodes, USD/h."""
    wanted = set(nodes)
    return sum(
        pool.usd_per_node_h(node)
        for pool in cluster.pools
        for node in pool.nodes
        if node.id in wanted
    )
