"""A reserved start: what a job that has waited long keeps from the jobs behind it.

With ageing on, the first job of the queue that does not fit, and has waited at least one step of
ageing, keeps the free nodes that a group of its own needs. Where these are too few it also closes
groups to newcomers: those with the fewest members whose nodes, once they end, make up the rest. The
jobs behind it may go anywhere else. So its wait is bounded: nobody enters a closed group, its
members end, and their nodes are kept; the choice of groups only ever changes to smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from rmux.cluster import NodePool, PoolKind
from rmux.group import ClusterState, CoExecGroup, PendingJob
from rmux.ids import GroupId, JobId, NodeId, PoolName
from rmux.job import Reason
from rmux.place.index import Index
from rmux.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    job_id: JobId
    name: str
    waited_s: float
    nodes: tuple[NodeId, ...]
    """Free ones that are kept."""
    groups: tuple[GroupId, ...]
    """Nothing joins them; their nodes are waited for."""
    growth: Mapping[PoolName, int]
    """Nodes that elastic pools may still gain and that are kept."""
    missing: tuple[str, ...]
    """What it waits for, such as '4 more devices of rollout pool h20'."""


def reservation(state: ClusterState, job: PendingJob, *, now: datetime) -> Reservation | None:
    """What a job that was refused keeps; None where ageing is off or the job is young, or where it
    does not wait for nodes: there are enough, or there never will be without undraining some."""
    age_s = max(0.0, (now - job.job.created_at).total_seconds())
    ageing_s = state.cluster.policy.ageing_s
    if not ageing_s or age_s < ageing_s:
        return None
    wants = (
        (PoolKind.ROLLOUT, job.profile.rollout_hardware, job.spec.rollout.devices),
        (PoolKind.TRAIN, job.profile.train_hardware, job.spec.train.devices),
    )
    supplies = [_supply(state, kind, hardware, count) for kind, hardware, count in wants]
    found = [supply for supply in supplies if supply is not None]
    short = {supply.pool.name: supply.missing for supply in found if supply.missing > 0}
    if len(found) < len(wants) or not short:
        return None
    return Reservation(
        job_id=job.job.id,
        name=job.spec.name,
        waited_s=age_s,
        nodes=tuple(node for supply in found for node in supply.kept),
        groups=_to_end(state, short),
        growth={supply.pool.name: supply.growth for supply in found if supply.growth},
        missing=tuple(
            f"{supply.missing} more {'device' if supply.missing == 1 else 'devices'} of "
            f"{supply.pool.kind} pool {supply.pool.name}"
            for supply in found
            if supply.missing > 0
        ),
    )


def held_back(state: ClusterState, kept: Reservation) -> ClusterState:
    """The state as the jobs behind see it: what is kept counts as drained."""
    closed = {node for one in state.groups if one.id in kept.groups for node in one.nodes}
    blocked = closed | set(kept.nodes)
    why = f"kept for {kept.name} ({kept.job_id})"

    def seen(pool: NodePool) -> NodePool:
        nodes = tuple(
            replace(node, drained=why) if node.id in blocked and not node.drained else node
            for node in pool.nodes
        )
        most = pool.max_nodes - kept.growth.get(pool.name, 0)
        return replace(pool, nodes=nodes, max_nodes=max(0, most))

    pools = tuple(seen(pool) for pool in state.cluster.pools)
    return replace(state, cluster=replace(state.cluster, pools=pools))


def fits(state: ClusterState, job: PendingJob) -> bool:
    """Whether the job would be admitted now."""
    decision = Index.of(state).decide(spec=job.spec, profile=job.profile, job_id=job.job.id)
    return decision.admitted


def reserved(kept: Reservation) -> Reason:
    """Why a job behind has to wait that would fit otherwise."""
    return Reason(
        code="reserved",
        message=f"it would fit, but on nodes that are kept for {kept.name} ({kept.job_id}), which "
        f"has waited {format_duration(kept.waited_s)} and needs {' and '.join(kept.missing)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Supply:
    """What one pool has for the job."""

    pool: NodePool
    kept: tuple[NodeId, ...]
    growth: int
    missing: int
    """Devices."""


def _supply(state: ClusterState, kind: PoolKind, hardware: str, count: int) -> _Supply | None:
    """Of the pool that misses least; None where none ever has that many devices."""
    pools = [pool for pool in state.cluster.of_kind(kind) if pool.hardware == hardware]
    found = [_of_pool(state, pool, count) for pool in pools if _offers(pool) >= count]
    return min(found, key=lambda supply: supply.missing, default=None)


def _offers(pool: NodePool) -> int:
    """Devices of the pool once nobody holds any."""
    there = sum(node.num_devices for node in pool.nodes if not node.drained)
    return there + _growth(pool) * (pool.nodes[-1].num_devices if pool.nodes else 0)


def _growth(pool: NodePool) -> int:
    return max(0, pool.max_nodes - len(pool.nodes)) if pool.nodes else 0


def _of_pool(state: ClusterState, pool: NodePool, count: int) -> _Supply:
    left, kept = count, []
    for node in sorted(state.free_nodes(pool.name), key=lambda node: -node.num_devices):
        if left <= 0:
            break
        kept.append(node.id)
        left -= node.num_devices
    growth = 0
    if left > 0 and _growth(pool):
        growth = min(_growth(pool), math.ceil(left / pool.nodes[-1].num_devices))
        left -= growth * pool.nodes[-1].num_devices
    return _Supply(pool=pool, kept=tuple(kept), growth=growth, missing=max(0, left))


def _to_end(state: ClusterState, short: dict[PoolName, int]) -> tuple[GroupId, ...]:
    """Groups with the fewest members that hold what is short."""
    pool_of = {
        node.id: (pool.name, node.num_devices)
        for pool in state.cluster.pools
        if pool.name in short
        for node in pool.nodes
        if not node.drained
    }
    left, closed = dict(short), []

    def size(group: CoExecGroup) -> tuple[int, GroupId]:
        return len(group.members), group.id

    for group in sorted(state.groups, key=size):
        gives = [pool_of[node] for node in group.nodes if node in pool_of]
        if any(left[name] > 0 for name, _ in gives):
            closed.append(group.id)
            for name, devices in gives:
                left[name] -= devices
    return tuple(closed)
