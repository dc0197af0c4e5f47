"""Co-execution groups and the immutable snapshot that placement decides on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    asked_train_devices: int = 0
    """Where it was given another number of train devices, of which `profile` is; 0: as it asked."""
    asked_profile: JobProfile | None = None
    """On the train devices it asked for, where those are others."""
    batches: tuple[int, int] | None = None
    """Sequences per optimizer step, and per pass on one train device; None: not known here, so it
    is not dealt to another number of devices."""

    @property
    def asked_solo_s(self) -> float:
        """Seconds per iteration alone on the train devices it asked for; 0: `profile` says it."""
        if self.asked_profile is None:
            return 0.0
        return solo_s(self.asked_profile, max_staleness=self.max_staleness)

    @property
    def solo_s(self) -> float:
        """Planned seconds per iteration alone, on as many train devices as it asked for.

        One step off-policy the longer of a rollout, and of a train with its sync and checkpoint:
        see `one_ahead_s`.
        """
        return self.asked_solo_s or solo_s(self.profile, max_staleness=self.max_staleness)


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
    new_nodes: tuple[Node, ...] = ()
    """Those of the added nodes that elastic pools gain for it."""


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
    fitted = fitted_profile(profile, asked=spec.train.devices, train=placement.train)
    return Member(
        job_id=job_id,
        name=spec.name,
        slo=spec.slo,
        profile=fitted,
        placement=placement,
        max_staleness=spec.max_staleness,
        max_repeats=spec.max_repeats,
        tenant=spec.tenant,
        priority=spec.priority,
        movable=spec.movable,
        asked_train_devices=0 if fitted is profile else spec.train.devices,
        asked_profile=None if fitted is profile else profile,
        batches=(spec.train.mini_batch, spec.train.micro_batch),
    )


def solo_s(profile: JobProfile, *, max_staleness: int = 0) -> float:
    """Planned seconds per iteration of a job alone: see `Member.solo_s`."""
    if not max_staleness:
        return profile.solo_s
    return one_ahead_s(
        rollout_s=profile.rollout.planned_s,
        train_s=profile.train.planned_s,
        off_device_s=profile.off_device_s,
    )


def one_ahead_s(*, rollout_s: float, train_s: float, off_device_s: float) -> float:
    """Seconds per iteration alone, one step off-policy.

    The next rollout runs beside a train and what follows it off the devices, its sync and
    checkpoint. These two take turns in the job's main thread, so the next train waits for both.
    That two iterations take a whole loop is no further bound: a mean is below the larger.
    """
    return max(rollout_s, train_s + off_device_s)


def fitted_profile(profile: JobProfile, *, asked: int, train: tuple[DeviceId, ...]) -> JobProfile:
    """The profile of a job that asked for `asked` train devices and gets these.

    Fewer ranks share the same samples, so training takes longer in proportion; more are not taken
    to be faster. Each node holds the state of its ranks, and fewer ranks hold larger shares.
    """
    given = len(train)
    if given in (0, asked):
        return profile
    here = max(Counter(device.node for device in train).values())
    scale = max(1.0, asked / given)
    held = scale * max(1.0, here / min(here, asked))
    phase = profile.train
    return replace(
        profile,
        train=replace(phase, worst_s=phase.worst_s * scale, expected_s=phase.expected_s * scale),
        train_resident_bytes=math.ceil(profile.train_resident_bytes * held),
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
