"""Where a job could go: into a group as it is, into a group with more rollout nodes, or alone.

Train pools are never scaled: a joining job uses exactly the train devices of the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rmux.cluster import DeviceId, Node, NodePool, PoolKind
from rmux.estimate import JobProfile
from rmux.group import ClusterState, CoExecGroup, Placement
from rmux.ids import NodeId
from rmux.job import JobSpec, Reason
from rmux.place.inventory import Inventory


class Kind(StrEnum):
    PACK = "direct packing"
    """On devices the group has already."""
    SCALE = "rollout scaling"
    """With just enough further rollout nodes."""
    NEW = "isolated group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A place to be judged; or none, and why there can be none."""

    kind: Kind
    group: CoExecGroup | None = None
    placement: Placement | None = None
    added_nodes: tuple[NodeId, ...] = ()
    refusal: Reason | None = None


def proposals_for(
    state: ClusterState | Inventory, group: CoExecGroup, *, spec: JobSpec, profile: JobProfile
) -> Iterator[Proposal]:
    """Placements in the group: equal or unused rollout devices first, then overlapping ones, then
    further nodes. One refusal when none can be."""
    known = _inventory(state)
    refusal = _group_refusal(known, group, spec, profile)
    if refusal is not None:
        yield Proposal(kind=Kind.PACK, group=group, refusal=refusal)
        return
    train = group.members[0].placement.train
    pool = known.pool_of(group.members[0].placement.rollout[0].node)
    count = spec.rollout.devices
    found = False
    seen: set[frozenset[DeviceId]] = set()
    for devices in _packings(known, group, count):
        if frozenset(devices) not in seen:
            seen.add(frozenset(devices))
            found = True
            yield Proposal(
                kind=Kind.PACK, group=group, placement=Placement(rollout=devices, train=train)
            )
    free = known.free[pool.name]
    need_bytes = profile.rollout_resident_bytes + profile.switch_peak_bytes
    unused = _compact(_unused(known, group))
    for reused in dict.fromkeys((tuple(unused) if len(unused) < count else (), ())):
        nodes = pick_nodes(pool, free, count - len(reused), need_bytes=need_bytes)
        if nodes is not None:
            found = True
            fresh = _devices_of(nodes)[: count - len(reused)]
            yield Proposal(
                kind=Kind.SCALE,
                group=group,
                placement=Placement(rollout=(*reused, *fresh), train=train),
                added_nodes=tuple(node.id for node in nodes),
            )
    if not found:
        yield Proposal(
            kind=Kind.SCALE, group=group, refusal=_shortage(known, (pool,), count, group=group)
        )


def isolated(
    state: ClusterState | Inventory, *, spec: JobSpec, profile: JobProfile
) -> Iterator[Proposal]:
    """New groups on free nodes of the hardware that was profiled. One refusal when none can be."""
    known = _inventory(state)
    cluster = known.state.cluster
    pools: dict[PoolKind, tuple[NodePool, ...]] = {}
    for kind, hardware, count in (
        (PoolKind.ROLLOUT, profile.rollout_hardware, spec.rollout.devices),
        (PoolKind.TRAIN, profile.train_hardware, spec.train.devices),
    ):
        pools[kind] = tuple(p for p in cluster.of_kind(kind) if p.hardware == hardware)
        if not pools[kind]:
            have = sorted({pool.hardware for pool in cluster.of_kind(kind)})
            yield Proposal(
                kind=Kind.NEW,
                refusal=Reason(
                    code="hardware",
                    message=f"no {kind} pool of {hardware}; there is {', '.join(have) or 'none'}",
                ),
            )
            return
        shortage = _shortage(known, pools[kind], count)
        if shortage is not None:
            yield Proposal(kind=Kind.NEW, refusal=shortage)
            return
    for rollout_pool, train_pool in itertools.product(
        pools[PoolKind.ROLLOUT], pools[PoolKind.TRAIN]
    ):
        rollout = pick_nodes(
            rollout_pool,
            known.free[rollout_pool.name],
            spec.rollout.devices,
            need_bytes=profile.rollout_resident_bytes + profile.switch_peak_bytes,
        )
        train = pick_nodes(
            train_pool,
            known.free[train_pool.name],
            spec.train.devices,
            need_bytes=profile.train_resident_bytes + profile.switch_peak_bytes,
        )
        if rollout is None or train is None:
            continue
        yield Proposal(
            kind=Kind.NEW,
            placement=Placement(
                rollout=_devices_of(rollout)[: spec.rollout.devices],
                train=_devices_of(train)[: spec.train.devices],
            ),
            added_nodes=tuple(node.id for node in (*rollout, *train)),
        )


def empty_cluster(state: ClusterState) -> ClusterState:
    """The same hardware with nobody on it and no node drained."""
    pools = tuple(
        replace(pool, nodes=tuple(replace(node, drained="") for node in pool.nodes))
        for pool in state.cluster.pools
    )
    return replace(state, cluster=replace(state.cluster, pools=pools), groups=(), pending=())


def pick_nodes(
    pool: NodePool, free: Sequence[Node], count: int, *, need_bytes: int
) -> tuple[Node, ...] | None:
    """The fewest nodes with `count` devices, the cheapest that suffice, roomy ones first.

    None when there are not enough devices.
    """
    roomy = [node for node in free if node.usable_memory_bytes >= need_bytes]
    for nodes in (roomy, free):
        if sum(node.num_devices for node in nodes) < count:
            continue
        picked: list[Node] = []
        rest = sorted(nodes, key=lambda node: -node.num_devices)
        while count > 0:
            enough = [node for node in rest if node.num_devices >= count]
            node = min(enough, key=pool.usd_per_node_h) if enough else rest[0]
            picked.append(node)
            rest.remove(node)
            count -= node.num_devices
        return tuple(picked)
    return None


def _inventory(state: ClusterState | Inventory) -> Inventory:
    return state if isinstance(state, Inventory) else Inventory.of(state)


def _group_refusal(
    known: Inventory, group: CoExecGroup, spec: JobSpec, profile: JobProfile
) -> Reason | None:
    train = group.members[0].placement.train
    for nodes, hardware in (
        (group.members[0].placement.rollout_nodes, profile.rollout_hardware),
        (group.members[0].placement.train_nodes, profile.train_hardware),
    ):
        pool = known.pool_of(nodes[0])
        if pool.hardware != hardware:
            return Reason(
                code="hardware",
                message=f"pool {pool.name} is {pool.hardware}, the profile is of {hardware}",
            )
    if len(train) != spec.train.devices:
        return Reason(
            code="data_parallel",
            message=f"the group trains on {len(train)} devices, the job asks for "
            f"{spec.train.devices}; train pools are not scaled",
        )
    for node_id in group.members[0].placement.train_nodes:
        drained = known.node(node_id).drained
        if drained:
            return Reason(code="drained", message=f"train node {node_id} is drained: {drained}")
    if group.desired != "run":
        return Reason(code="down", message="the group is stopped (rmux group down)")
    return None


def _packings(known: Inventory, group: CoExecGroup, count: int) -> Iterator[tuple[DeviceId, ...]]:
    usable = _usable(known, group)
    sets = list(dict.fromkeys(member.placement.rollout for member in group.members))
    sets = [devices for devices in sets if set(devices) <= set(usable)]
    yield from (devices for devices in sets if len(devices) == count)
    unused = _compact(_unused(known, group))
    if len(unused) >= count:
        yield tuple(unused[:count])
    # From here on sets overlap in part: they pay their true period.
    loads_s: dict[DeviceId, float] = dict.fromkeys(usable, 0.0)
    for member in group.members:
        for device in member.placement.rollout:
            if device in loads_s:
                loads_s[device] += member.profile.rollout.planned_s
    if len(usable) >= count:
        yield tuple(sorted(sorted(usable, key=lambda device: loads_s[device])[:count]))
    yield from (devices[:count] for devices in sets if len(devices) > count)
    for left, right in itertools.combinations(sets, 2):
        if len(left) + len(right) == count and not set(left) & set(right):
            yield (*left, *right)


def _usable(known: Inventory, group: CoExecGroup) -> list[DeviceId]:
    pool = known.pool_of(group.members[0].placement.rollout[0].node)
    nodes = [known.node(node) for node in group.nodes if known.pool_of(node) is pool]
    return [device for node in nodes if not node.drained for device in node.devices]


def _unused(known: Inventory, group: CoExecGroup) -> list[DeviceId]:
    used = {device for member in group.members for device in member.placement.rollout}
    return [device for device in _usable(known, group) if device not in used]


def _compact(devices: Iterable[DeviceId]) -> list[DeviceId]:
    """Devices of the same node together, the nodes that offer most first."""
    by_node: dict[NodeId, list[DeviceId]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    ranked = sorted(by_node.values(), key=len, reverse=True)
    return [device for node in ranked for device in node]


def _devices_of(nodes: Iterable[Node]) -> tuple[DeviceId, ...]:
    return tuple(device for node in nodes for device in node.devices)


def _shortage(
    known: Inventory,
    pools: Sequence[NodePool],
    count: int,
    *,
    group: CoExecGroup | None = None,
) -> Reason | None:
    """Why no one of the pools has `count` free devices; None when one has."""
    free, drained = [], []
    for pool in pools:
        free.append(sum(node.num_devices for node in known.free[pool.name]))
        idle = [node for node in pool.nodes if node.drained and node.id not in known.held]
        drained.append(sum(node.num_devices for node in idle))
    if group is None and max(free) >= count:
        return None
    names = " and ".join(f"{pool.kind} pool {pool.name}" for pool in pools)
    total = sum(node.num_devices for pool in pools for node in pool.nodes)
    devices = "1 device" if count == 1 else f"{count} devices"
    message = f"needs {devices}; {names} has {max(free)} of {total} free"
    would_do = max(some + more for some, more in zip(free, drained, strict=True)) >= count
    if would_do:
        return Reason(code="drained", message=f"{message}, {sum(drained)} on drained nodes")
    return Reason(code="capacity", message=message)
