"""In what order waiting jobs are tried, and whether their tenant may have what they would get.

A job's effective priority is the priority of its spec plus one for every whole `ageing_s` of the
policy that it has waited; the higher goes first. Nothing starves with ageing: a job that came
(P - p + 1) x ageing_s after another, which has priority p, is behind it for good, however high its
own priority P is. Among equals the tenant that is charged least per weight goes first, each further
job counted as if it went alone; then the oldest, then the least id.

All of it is off by default: without ageing, priorities and declared tenants, oldest first.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from rmux.cluster import Cluster, PoolKind, Tenant
from rmux.group import (
    Assignment,
    ClusterState,
    CoExecGroup,
    PendingJob,
    cost_usd_per_h,
    member_of,
)
from rmux.ids import GroupId
from rmux.job import Reason
from rmux.place import charge
from rmux.place.deadline import earliest_finish_s, late, preferring_deadline
from rmux.place.reserve import Reservation, fits, held_back, reservation, reserved
from rmux.units import format_usd_per_h

__all__ = ["Reservation", "added_usd_per_h", "earliest_finish_s", "effective_priority", "fits"]
__all__ += ["held_back", "late", "order", "over", "over_quota", "preferring_deadline"]
__all__ += ["quota_refusal", "reservation", "reserved", "waited_s"]

_EXACT = 1 + 1e-9
"""A charge that differs from its quota by rounding only is within it."""


def order(state: ClusterState, *, now: datetime) -> tuple[PendingJob, ...]:
    """The waiting jobs, first to be tried first."""
    ageing_s = state.cluster.policy.ageing_s
    levels: dict[int, list[PendingJob]] = {}
    for job in state.pending:
        levels.setdefault(effective_priority(job, ageing_s=ageing_s, now=now), []).append(job)
    for level in levels.values():
        level.sort(key=lambda one: (one.job.created_at, one.job.id))
    ranked = [levels[level] for level in sorted(levels, reverse=True)]
    if not state.cluster.tenants:
        return tuple(job for level in ranked for job in level)
    charged = dict(charge.by_tenant(state))
    return tuple(job for level in ranked for job in _fair(level, state.cluster, charged))


def effective_priority(job: PendingJob, *, ageing_s: float, now: datetime) -> int:
    """Of the spec, and one more for every `ageing_s` waited; 0 turns ageing off."""
    steps = math.floor(waited_s(job, now=now) / ageing_s) if ageing_s > 0 else 0
    return job.spec.priority + steps


def waited_s(job: PendingJob, *, now: datetime) -> float:
    """Seconds since the job was submitted; 0 for one of the future, as clocks differ."""
    return max(0.0, (now - job.job.created_at).total_seconds())


def over_quota(
    state: ClusterState,
    job: PendingJob,
    *,
    added_usd_per_h: float,
    charged: Mapping[str, float] | None = None,
) -> Reason | None:
    """Why the job's tenant may not be charged that much more; None when it may.

    `charged` is `charge.by_tenant(state)`, if it is known. `quota_refusal` is the whole rule.
    """
    now_usd_per_h = charge.by_tenant(state) if charged is None else charged
    return over(state.cluster, job.spec.tenant, added_usd_per_h, now_usd_per_h)


def quota_refusal(
    state: ClusterState,
    job: PendingJob,
    assignment: Assignment,
    *,
    charged: Mapping[str, float] | None = None,
) -> Reason | None:
    """Which tenant's charge the placement would raise above its quota; None when none's.

    A tenant's charge is the sum of what its jobs are charged (`charge.shares`, planned). The job's
    share is counted in the group as it is after the placement, so a tenant is charged for a job
    that joins at no further cost, and for what a co-runner's new nodes add to its own shares. When
    a co-runner ends, the others' shares grow: that may exceed a quota, and moves nobody.
    """
    if not any(tenant.quota_usd_per_h for tenant in state.cluster.tenants):
        return None
    limited = {tenant.name for tenant in state.cluster.tenants if tenant.quota_usd_per_h}
    changes = added_usd_per_h(state, job, assignment)
    raised = {name: more for name, more in changes.items() if more > 0 and name in limited}
    before = charge.by_tenant(state, only=raised) if charged is None else charged
    for tenant, added in raised.items():
        reason = over(state.cluster, tenant, added, before)
        if reason is not None:
            return reason
    return None


def added_usd_per_h(
    state: ClusterState, job: PendingJob, assignment: Assignment
) -> Mapping[str, float]:
    """By how much a placement would raise what each tenant in the group is charged, USD/h; negative
    where it lowers it. The job's own tenant first."""
    before, after = _group_before_and_after(state, job, assignment)
    new_cluster = _with_new_nodes(state.cluster, assignment)
    added: dict[str, float] = {job.spec.tenant: 0.0}
    for group, sign in ((before, -1.0), (after, 1.0)):
        if group is not None and group.members:
            part = charge.split(
                cost_usd_per_h(group.nodes, new_cluster),
                {one.job_id: charge.planned_held_s(group, one) for one in group.members},
            )
            for member in group.members:
                added[member.tenant] = added.get(member.tenant, 0.0) + sign * part[member.job_id]
    return added


def over(cluster: Cluster, name: str, added: float, charged: Mapping[str, float]) -> Reason | None:
    """Why a tenant may not be charged `added` USD/h more; None when it may."""
    tenant = _declared(cluster).get(name)
    before = charged.get(name, 0.0)
    if tenant is None or not tenant.quota_usd_per_h or added <= 0:
        return None
    if before + added <= tenant.quota_usd_per_h * _EXACT:
        return None
    return Reason(
        code="quota",
        message=f"quota of tenant {name} is {format_usd_per_h(tenant.quota_usd_per_h)}, charged "
        f"{format_usd_per_h(before)} now; this would add {format_usd_per_h(added)}",
    )


def _group_before_and_after(
    state: ClusterState, job: PendingJob, assignment: Assignment
) -> tuple[CoExecGroup | None, CoExecGroup]:
    member = member_of(job.spec, job.profile, job_id=job.job.id, placement=assignment.placement)
    if assignment.group_id is None:
        founded = CoExecGroup(
            id=GroupId(""), members=(member,), nodes=assignment.added_nodes, turns=assignment.turns
        )
        return None, founded
    group = state.group(assignment.group_id)
    kept = tuple(node for node in group.nodes if node not in assignment.removed_nodes)
    return group, replace(
        group,
        members=(*group.members, member),
        nodes=kept + assignment.added_nodes,
        turns=assignment.turns or group.turns,
    )


def _with_new_nodes(cluster: Cluster, assignment: Assignment) -> Cluster:
    new = assignment.new_nodes
    if not new:
        return cluster
    pools = tuple(
        replace(pool, nodes=pool.nodes + tuple(node for node in new if node.pool == pool.name))
        for pool in cluster.pools
    )
    return replace(cluster, pools=pools)


def _fair(
    waiting: Sequence[PendingJob], cluster: Cluster, charged: dict[str, float]
) -> Iterator[PendingJob]:
    """Of the tenant charged least per weight first; `charged` grows as they are dealt."""
    queues: dict[str, deque[PendingJob]] = {}
    for job in waiting:
        queues.setdefault(job.spec.tenant, deque()).append(job)
    declared = _declared(cluster)
    weight = {name: declared[name].weight if name in declared else 1.0 for name in queues}

    def entry(name: str) -> tuple[float, datetime, str, str]:
        oldest = queues[name][0].job
        return charged.get(name, 0.0) / weight[name], oldest.created_at, oldest.id, name

    heap = [entry(name) for name in queues]
    heapq.heapify(heap)
    while heap:
        name = heapq.heappop(heap)[-1]
        job = queues[name].popleft()
        charged[name] = charged.get(name, 0.0) + _alone_usd_per_h(job, cluster)
        if queues[name]:
            heapq.heappush(heap, entry(name))
        yield job


def _alone_usd_per_h(job: PendingJob, cluster: Cluster) -> float:
    """The devices that it asks for, at the cheapest price of their hardware."""
    usd_per_h = 0.0
    for kind, hardware, count in (
        (PoolKind.ROLLOUT, job.profile.rollout_hardware, job.spec.rollout.devices),
        (PoolKind.TRAIN, job.profile.train_hardware, job.spec.train.devices),
    ):
        pools = [one for one in cluster.of_kind(kind) if one.hardware == hardware]
        usd_per_h += count * min((one.usd_per_device_h for one in pools), default=0.0)
    return usd_per_h


def _declared(cluster: Cluster) -> Mapping[str, Tenant]:
    return {tenant.name: tenant for tenant in cluster.tenants}
