"""Who pays for a group: its price per hour, charged to its members.

Each member is charged in proportion to the device-seconds it holds, a second of any device of the
group counting alike; the time in which nobody holds a device is charged by the same shares. Held
seconds are those measured if there are any, else those planned for one round: (rollout with its
switch x rollout devices + train with its switch x train devices) x iterations in the round. Sync
and checkpoint hold no device and cost nothing.

What the members of a group are charged adds up to its price to the last bit, in any order: amounts
are whole multiples of the price's last binary digit, and the largest share takes what is left over
by rounding down.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from rmux.cluster import Cluster
from rmux.group import ClusterState, CoExecGroup, Member
from rmux.ids import GroupId, JobId
from rmux.timeline import Hold

UNASSIGNED = "(unassigned)"
"""Who is charged for groups that hold nodes and have no member."""

ENOUGH_HOLDS = 6
"""Ended holds that each member needs before they are charged by: three iterations or so."""

Held = Mapping[JobId, float]
"""Device-seconds that each job held."""


def shares(
    group: CoExecGroup, cluster: Cluster, *, held_s: Held | None = None
) -> Mapping[JobId, float]:
    """USD/h charged to each member; the sum is the group's price exactly, empty without members.

    `held_s` are measured device-seconds; a member that is not named held none. Where no member held
    any, the plan counts, and where that has no device-seconds either, all are charged alike.
    """
    return shares_of(group, group.usd_per_h(cluster), held_s=held_s)


def shares_of(
    group: CoExecGroup, usd_per_h: float, *, held_s: Held | None = None
) -> Mapping[JobId, float]:
    """`shares` of a price that is known."""
    return split(usd_per_h, _weights(group, held_s))


def by_tenant(
    state: ClusterState,
    *,
    held_s: Mapping[GroupId, Held] | None = None,
    only: Collection[str] | None = None,
) -> Mapping[str, float]:
    """USD/h charged to each tenant that has jobs in groups; '' are jobs of nobody's tenant.

    The sum is the bill, `bill_usd_per_h`, up to rounding: groups without members are charged to
    `UNASSIGNED`. With `only` the groups in which none of these tenants has a job are left out, and
    what the other tenants are charged is not whole.
    """
    charged: dict[str, list[float]] = {}
    prices = Prices(state.cluster)
    for group in state.groups:
        if only is not None and not any(member.tenant in only for member in group.members):
            continue
        if not group.members:
            charged.setdefault(UNASSIGNED, []).append(prices.usd_per_h(group))
            continue
        held = (held_s or {}).get(group.id)
        part = shares_of(group, prices.usd_per_h(group), held_s=held)
        for member in group.members:
            charged.setdefault(member.tenant, []).append(part[member.job_id])
    return {tenant: math.fsum(amounts) for tenant, amounts in sorted(charged.items())}


def bill_usd_per_h(state: ClusterState) -> float:
    """What all groups cost together, USD/h."""
    prices = Prices(state.cluster)
    return math.fsum(prices.usd_per_h(group) for group in state.groups)


class Prices:
    """`CoExecGroup.usd_per_h` of many groups, to the last bit, without reading the cluster anew."""

    def __init__(self, cluster: Cluster) -> None:
        nodes = ((pool, node) for pool in cluster.pools for node in pool.nodes)
        self._of = {
            node.id: (rank, pool.usd_per_node_h(node)) for rank, (pool, node) in enumerate(nodes)
        }

    def usd_per_h(self, group: CoExecGroup) -> float:
        held = sorted(self._of[node] for node in set(group.nodes) if node in self._of)
        return sum(usd_per_h for _, usd_per_h in held)


def planned_held_s(group: CoExecGroup, member: Member) -> float:
    """Device-seconds that the plan gives a member in one round of the group."""
    profile, placement = member.profile, member.placement
    once_s = profile.rollout.planned_s * len(placement.rollout)
    once_s += profile.train.planned_s * len(placement.train)
    return once_s * group.round.count(member.job_id)


def measured_held_s(group: CoExecGroup, holds: Iterable[Hold]) -> Held | None:
    """Device-seconds that the members held, from when each of them had begun to hold any.

    None while one of them has fewer than `ENOUGH_HOLDS` that have ended: it starts, stands still,
    or has just joined. Then the plan counts.
    """
    ended: dict[JobId, list[Hold]] = {member.job_id: [] for member in group.members}
    for hold in holds:
        if hold.job_id in ended and hold.end_s is not None:
            ended[hold.job_id].append(hold)
    since_s = max((held[0].start_s if held else math.inf for held in ended.values()), default=0.0)
    counted = {job: [h for h in held if h.start_s >= since_s] for job, held in ended.items()}
    if any(len(held) < ENOUGH_HOLDS for held in counted.values()):
        return None
    return {job: math.fsum(hold.seconds for hold in held) for job, held in counted.items()}


def split(usd_per_h: float, weights: Mapping[JobId, float]) -> Mapping[JobId, float]:
    """An amount in proportion to weights of at least 0; equal parts where all of them are 0.

    Parts are multiples of the amount's last binary digit, so they and all their sums are exact.
    """
    if not weights:
        return {}
    total = math.fsum(weights.values())
    if total <= 0:
        weights, total = dict.fromkeys(weights, 1.0), float(len(weights))
    digit = math.ulp(usd_per_h)
    digits = round(usd_per_h / digit)
    parts = {job: math.floor(digits * (weight / total)) for job, weight in weights.items()}
    largest = max(weights, key=lambda job: weights[job])
    parts[largest] += digits - sum(parts.values())
    return {job: part * digit for job, part in parts.items()}


def _weights(group: CoExecGroup, held_s: Held | None) -> Mapping[JobId, float]:
    if held_s is not None:
        measured = {member.job_id: held_s.get(member.job_id, 0.0) for member in group.members}
        if any(measured.values()):
            return measured
    return {member.job_id: planned_held_s(group, member) for member in group.members}
