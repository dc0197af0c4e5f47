"""Admission written plainly: every placement of every group in turn, from the definitions alone.

`paper` is Algorithm 1 of RollMux line by line; `interval` is the interval rule. Both go through the
whole state, prune nothing but what Algorithm 1 prunes and share no code with the index but the
period of loops. They are what `admit` and `Index.decide` must agree with.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rmux.cluster import DeviceId, Node, NodePool, PoolKind
from rmux.estimate import JobProfile
from rmux.group import ClusterState, CoExecGroup, Member, Placement, member_of, nodes_of
from rmux.ids import JobId
from rmux.job import JobSpec
from rmux.place.period import CLOSE, best_round, loop_of, period

INFINITE = float("inf")


@dataclass(frozen=True)
class Choice:
    group_id: str | None
    placement: Placement
    usd_per_h: float


class _Hardware:
    """Look-ups in one state, so that a scan reads each group once and the cluster once."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.policy = state.cluster.policy
        self.pools = {pool.name: pool for pool in state.cluster.pools}
        self.nodes = {node.id: node for pool in state.cluster.pools for node in pool.nodes}
        self.free = {pool.name: _free(state, pool) for pool in state.cluster.pools}
        self.picked: dict[tuple[str, int, int], tuple[Node, ...] | None] = {}

    def pool(self, device: DeviceId) -> NodePool:
        return self.pools[self.nodes[device.node].pool]

    def pick(self, pool: NodePool, count: int, need_bytes: int) -> tuple[Node, ...] | None:
        key = (pool.name, count, need_bytes)
        if key not in self.picked:
            self.picked[key] = _pick(self, pool, count, need_bytes)
        return self.picked[key]


def _free(state: ClusterState, pool: NodePool) -> list[Node]:
    held = {node for group in state.groups for node in group.nodes}
    return [node for node in pool.nodes if node.id not in held and not node.drained]


def paper(
    state: ClusterState, *, spec: JobSpec, profile: JobProfile, job_id: JobId
) -> Choice | None:
    """Algorithm 1: SCHEDULE(j, {G_i}), lines 2 to 18."""
    known = _Hardware(state)
    best_usd, best = INFINITE, None
    for group in state.groups:
        if not _may_join(known, group, spec, profile):
            continue
        if _load_s(group) >= _cycle_s(group.members):
            continue
        for placement, added in _placements(known, group, spec, profile):
            members = _with(group.members, spec, profile, job_id, placement)
            if _memory_refuses(known, group.members, members[-1], added):
                continue
            order = [member.job_id for member in members]
            period_s = period(members, order=order).period_s
            if any(period_s > member.slo * _solo_s(member) * CLOSE for member in members):
                continue
            usd = _usd_per_h(known, added)
            if usd < best_usd - 1e-9:
                best_usd, best = usd, Choice(group.id, placement, usd)
    for placement, added in _alone(known, spec, profile):
        member = _with((), spec, profile, job_id, placement)[0]
        usd = _usd_per_h(known, added)
        if not _memory_refuses(known, (), member, added) and usd < best_usd - 1e-9:
            best_usd, best = usd, Choice(None, placement, usd)
    return best


def interval(
    state: ClusterState,
    *,
    spec: JobSpec,
    profile: JobProfile,
    job_id: JobId,
    margin: float = 0.0,
) -> Choice | None:
    """The cheapest place that keeps every promise; fewest new nodes, sets that do not overlap and
    most slack decide between equal ones, then who comes first. Links are not looked at."""
    known = _Hardware(state)
    found: list[tuple[tuple[float, int, bool, float], Choice]] = []
    tried: list[tuple[CoExecGroup | None, Placement, tuple[Node, ...]]] = [
        (group, *one)
        for group in state.groups
        if _may_join(known, group, spec, profile)
        for one in _placements(known, group, spec, profile)
    ]
    tried += [(None, *one) for one in _alone(known, spec, profile)]
    for group, placement, added in tried:
        old = () if group is None else group.members
        members = _with(old, spec, profile, job_id, placement)
        factor = 1 + margin if old else 1.0
        caps_s = {member.job_id: member.slo * member.solo_s for member in members}
        loops = [loop_of(member) for member in members]
        planned = best_round(loops, caps_s={job: cap / factor for job, cap in caps_s.items()})
        tight = max(planned.iteration_s(job) / cap for job, cap in caps_s.items())
        if tight * factor > CLOSE or _memory_short(known, members, added):
            continue
        usd = _usd_per_h(known, added)
        preference = (round(usd, 6), len(added), _overlapping(members), round(tight, 9))
        found.append((preference, Choice(None if group is None else group.id, placement, usd)))
    return min(found, key=lambda each: each[0])[1] if found else None


def _may_join(known: _Hardware, group: CoExecGroup, spec: JobSpec, profile: JobProfile) -> bool:
    if not group.members or group.desired != "run":
        return False
    most = known.policy.max_members
    if most and len(group.members) >= most:
        return False
    placement = group.members[0].placement
    rollout, train = (known.pool(d[0]) for d in (placement.rollout, placement.train))
    if rollout.hardware != profile.rollout_hardware or train.hardware != profile.train_hardware:
        return False
    degree, asked = len(placement.train), spec.train
    if degree != asked.devices and asked.mini_batch % (asked.micro_batch * degree):
        return False
    return not any(known.nodes[node].drained for node in placement.train_nodes)


def _placements(
    known: _Hardware, group: CoExecGroup, spec: JobSpec, profile: JobProfile
) -> Iterator[tuple[Placement, tuple[Node, ...]]]:
    """GENERATEPLACEMENTS(G): equal sets, unused devices, overlapping sets, further nodes."""
    count, train = spec.rollout.devices, group.members[0].placement.train
    pool = known.pool(group.members[0].placement.rollout[0])
    held = [known.nodes[node] for node in group.nodes]
    nodes = [node for node in held if node.pool == pool.name and not node.drained]
    usable = [device for node in nodes for device in node.devices]
    loads_s = dict.fromkeys(usable, 0.0)
    for member in group.members:
        for device in member.placement.rollout:
            if device in loads_s:
                loads_s[device] += member.profile.rollout.planned_s
    used = {device for member in group.members for device in member.placement.rollout}
    unused = [
        device
        for node in sorted(nodes, key=lambda node: -len(set(node.devices) - used))
        for device in node.devices
        if device not in used
    ]
    sets = list(dict.fromkeys(member.placement.rollout for member in group.members))
    sets = [devices for devices in sets if set(devices) <= set(usable)]
    tried = [devices for devices in sets if len(devices) == count]
    if len(unused) >= count:
        tried.append(tuple(unused[:count]))
    if len(usable) >= count:
        tried.append(tuple(sorted(sorted(usable, key=lambda device: loads_s[device])[:count])))
    tried += [devices[:count] for devices in sets if len(devices) > count]
    tried += [
        left + right
        for left, right in itertools.combinations(sets, 2)
        if len(left) + len(right) == count and not set(left) & set(right)
    ]
    seen = set()
    for devices in tried:
        if frozenset(devices) not in seen:
            seen.add(frozenset(devices))
            yield Placement(rollout=devices, train=train), ()
    need = profile.rollout_resident_bytes + profile.switch_peak_bytes
    for reused in (unused, []) if 0 < len(unused) < count else ([],):
        added = known.pick(pool, count - len(reused), need)
        if added is not None:
            fresh = [device for node in added for device in node.devices]
            rollout = (*reused, *fresh[: count - len(reused)])
            yield Placement(rollout=rollout, train=train), added


def _alone(
    known: _Hardware, spec: JobSpec, profile: JobProfile
) -> Iterator[tuple[Placement, tuple[Node, ...]]]:
    peak = profile.switch_peak_bytes
    for rollout_pool, train_pool in itertools.product(
        known.state.cluster.of_kind(PoolKind.ROLLOUT), known.state.cluster.of_kind(PoolKind.TRAIN)
    ):
        if rollout_pool.hardware != profile.rollout_hardware:
            continue
        if train_pool.hardware != profile.train_hardware:
            continue
        counts = spec.rollout.devices, spec.train.devices
        rollout = known.pick(rollout_pool, counts[0], profile.rollout_resident_bytes + peak)
        train = known.pick(train_pool, counts[1], profile.train_resident_bytes + peak)
        if rollout is None or train is None:
            continue
        devices = [
            tuple(device for node in nodes for device in node.devices) for nodes in (rollout, train)
        ]
        placement = Placement(rollout=devices[0][: counts[0]], train=devices[1][: counts[1]])
        yield placement, (*rollout, *train)


def _pick(known: _Hardware, pool: NodePool, count: int, need_bytes: int) -> tuple[Node, ...] | None:
    """The largest nodes until one suffices for the rest, then the smallest such; roomy ones first,
    listed ones before those an elastic pool would gain."""
    free = known.free[pool.name]
    made: list[Node] = []
    names = set(known.nodes) if pool.max_nodes else set()
    number = len(pool.nodes)
    while pool.nodes and len(made) < min(pool.max_nodes - len(pool.nodes), count):
        number += 1
        if (name := f"{pool.name}-{number}") not in names:
            made.append(replace(pool.nodes[-1], id=name, host=name, drained="", gpu_uuids=()))
            names.add(name)
    for nodes in (
        [node for node in free if node.usable_memory_bytes >= need_bytes],
        [node for node in (*free, *made) if node.usable_memory_bytes >= need_bytes],
        free,
        [*free, *made],
    ):
        if sum(node.num_devices for node in nodes) < count:
            continue
        picked: list[Node] = []
        left = count
        while left > 0:
            rest = [node for node in nodes if node not in picked]
            enough = [node for node in rest if node.num_devices >= left]
            size = (
                min(node.num_devices for node in enough)
                if enough
                else max(node.num_devices for node in rest)
            )
            picked.append(next(node for node in rest if node.num_devices == size))
            left -= size
        return tuple(picked)
    return None


def _with(
    members: tuple[Member, ...],
    spec: JobSpec,
    profile: JobProfile,
    job_id: JobId,
    placement: Placement,
) -> tuple[Member, ...]:
    return (*members, member_of(spec, profile, job_id=job_id, placement=placement))


def _solo_s(member: Member) -> float:
    return member.solo_s


def _cycle_s(members: tuple[Member, ...]) -> float:
    return max(member.solo_s for member in members)


def _load_s(group: CoExecGroup) -> float:
    loads_s: dict[DeviceId, float] = {}
    for member in group.members:
        for device in member.placement.rollout:
            loads_s[device] = loads_s.get(device, 0.0) + member.profile.rollout.planned_s
    train_s = sum(member.profile.train.planned_s for member in group.members)
    return max(train_s, *loads_s.values())


def _held_bytes(members: tuple[Member, ...], node: str) -> int:
    held = 0
    for member in members:
        if node in member.placement.rollout_nodes:
            held += member.profile.rollout_resident_bytes
        if node in member.placement.train_nodes:
            held += member.profile.train_resident_bytes
    return held


def _nodes(known: _Hardware, added: tuple[Node, ...]) -> Mapping[str, Node]:
    return ChainMap({node.id: node for node in added}, known.nodes)


def _memory_refuses(
    known: _Hardware, members: tuple[Member, ...], new: Member, added: tuple[Node, ...]
) -> bool:
    """Line 8: job.mem_req >= min over its nodes of node.mem_avail, for each kind of node."""
    nodes = _nodes(known, added)
    for needed, placed in (
        (new.profile.rollout_resident_bytes, new.placement.rollout_nodes),
        (new.profile.train_resident_bytes, new.placement.train_nodes),
    ):
        left = [nodes[node].usable_memory_bytes - _held_bytes(members, node) for node in placed]
        if needed >= min(left):
            return True
    return False


def _memory_short(known: _Hardware, members: tuple[Member, ...], added: tuple[Node, ...]) -> bool:
    """Whether a node of the new job could not hold all members and the worst set of switches."""
    nodes = _nodes(known, added)
    for node in nodes_of(members[-1].placement.devices):
        peaks = [
            ({d for d in member.placement.devices if d.node == node}, member.profile)
            for member in members
        ]
        peaks = [(devices, profile) for devices, profile in peaks if devices]
        worst = 0
        for size in range(1, len(peaks) + 1):
            for chosen in itertools.combinations(peaks, size):
                sets = [devices for devices, _ in chosen]
                if len(set().union(*sets)) == sum(map(len, sets)):
                    worst = max(worst, sum(p.switch_peak_bytes for _, p in chosen))
        if _held_bytes(members, node) + worst > nodes[node].usable_memory_bytes:
            return True
    return False


def _overlapping(members: tuple[Member, ...]) -> bool:
    sets = {frozenset(member.placement.rollout) for member in members}
    trains = {frozenset(member.placement.train) for member in members}
    return len(trains) > 1 or any(left & right for left, right in itertools.combinations(sets, 2))


def _usd_per_h(known: _Hardware, nodes: tuple[Node, ...]) -> float:
    return sum(known.pools[node.pool].usd_per_node_h(node) for node in nodes)
