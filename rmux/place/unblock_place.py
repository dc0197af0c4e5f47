"""What would let a waiting job into one place that refused it: a step for each kind of refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rmux.cluster import Node, NodePool, PoolKind
from rmux.group import ClusterState, PendingJob
from rmux.ids import GroupId, NodeId
from rmux.place.candidates import Kind
from rmux.place.decision import Candidate, Decision, place_name
from rmux.place.index import Index
from rmux.place.least_slo import smallest_slo
from rmux.units import format_bytes, format_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    code: str
    """Of the refusal that it answers."""
    message: str
    group_id: GroupId | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


def _slo(
    state: ClusterState, job: PendingJob, decision: Decision, nearest: Candidate
) -> Step | None:
    slo = smallest_slo(state, job, decision)
    if slo is not None:
        there = _decide(Index.of(state), replace(job, spec=replace(job.spec, slo=slo))).best
        place = "" if there is None else place_name(there)
        return Step(
            code="slo",
            group_id=None if there is None else there.group_id,
            message=f"--slo {slo:.2f} would fit {place} (it accepts {job.spec.slo:.2f} now)",
            numbers={"slo": slo},
        )
    tight = [
        one
        for one in nearest.slowdowns
        if one.job_id != decision.job_id and one.slowdown * (1 + decision.margin) > one.limit
    ]
    if not tight:
        return None
    worst = max(tight, key=lambda one: one.slowdown / one.limit)
    return Step(
        code="slo",
        group_id=nearest.group_id,
        message=f"{place_name(nearest)} has room when {worst.name} ({worst.job_id}) has ended: it "
        f"accepts {worst.limit:.2f}x and would go {worst.slowdown * (1 + decision.margin):.2f}x",
        numbers={"slowdown": worst.slowdown, "limit": worst.limit},
    )


def _residency(
    _state: ClusterState, _job: PendingJob, _decision: Decision, nearest: Candidate
) -> Step | None:
    if not nearest.memory:
        return None
    short = min(nearest.memory, key=lambda node: node.free_bytes)
    return Step(
        code="residency",
        group_id=nearest.group_id,
        message=f"{format_bytes(-short.free_bytes)} more host memory on {short.node} would fit "
        f"{place_name(nearest)}: host_memory and reserved_memory of the cluster file, or "
        "rmux profile SPEC to measure what it holds",
        numbers={"short_bytes": float(-short.free_bytes)},
    )


def _capacity(
    state: ClusterState, job: PendingJob, _decision: Decision, nearest: Candidate
) -> Step | None:
    if nearest.kind is not Kind.NEW:
        return None
    wants, numbers = [], {}
    for pool, count in _most_free(state, job):
        size = max(node.num_devices for node in pool.nodes)
        short = count - sum(node.num_devices for node in state.free_nodes(pool.name))
        if short <= 0:
            continue
        nodes = math.ceil(short / size)
        grow = f", max_nodes = {pool.max_nodes + nodes}" if pool.max_nodes else ""
        wants.append(
            f"{nodes} more {pool.hardware} {'node' if nodes == 1 else 'nodes'} in {pool.kind} "
            f"pool {pool.name}{grow}"
        )
        numbers[f"{pool.kind}_nodes"] = float(nodes)
    if not wants:
        return None
    return Step(
        code="capacity",
        message=f"a group of its own needs {' and '.join(wants)} (rmux pool add -f), or that "
        "another group ends",
        numbers=numbers,
    )


def _most_free(state: ClusterState, job: PendingJob) -> Iterator[tuple[NodePool, int]]:
    """Of each kind the pool that misses least, and the devices that are wanted of it."""
    for kind, hardware, count in (
        (PoolKind.ROLLOUT, job.profile.rollout_hardware, job.spec.rollout.devices),
        (PoolKind.TRAIN, job.profile.train_hardware, job.spec.train.devices),
    ):
        pools = [pool for pool in state.cluster.of_kind(kind) if pool.hardware == hardware]
        if pools:
            free = {pool.name: _devices(state.free_nodes(pool.name)) for pool in pools}
            yield max(pools, key=lambda pool: free[pool.name]), count


def _devices(nodes: tuple[Node, ...]) -> int:
    return sum(node.num_devices for node in nodes)


def _drained(
    state: ClusterState, job: PendingJob, _decision: Decision, nearest: Candidate
) -> Step | None:
    if nearest.group_id is not None:
        of_group = set(state.group(nearest.group_id).nodes)
        nodes = [
            node.id
            for pool in state.cluster.pools
            for node in pool.nodes
            if node.drained and node.id in of_group
        ]
    else:
        held = {node for group in state.groups for node in group.nodes}
        nodes = []
        for pool, count in _most_free(state, job):
            short = count - _devices(state.free_nodes(pool.name))
            for node in pool.nodes:
                if short > 0 and node.drained and node.id not in held:
                    nodes.append(NodeId(node.id))
                    short -= node.num_devices
    if not nodes:
        return None
    return Step(
        code="drained",
        group_id=nearest.group_id,
        message=f"rmux pool undrain {' '.join(nodes)} would make room",
        numbers={"nodes": float(len(nodes))},
    )


def _data_parallel(
    state: ClusterState, job: PendingJob, _decision: Decision, nearest: Candidate
) -> Step | None:
    if nearest.group_id is None:
        return None
    ranks = len(state.group(nearest.group_id).members[0].placement.train)
    train = job.spec.train
    fitting = [
        size for size in range(train.micro_batch, 0, -1) if train.mini_batch % (size * ranks) == 0
    ]
    what = f"the {ranks} train devices of {place_name(nearest)}"
    if fitting:
        message = f"train.micro_batch = {fitting[0]} could be dealt to {what}"
    else:
        message = f"train.mini_batch has to be a multiple of {ranks} for {what}"
    return Step(
        code="data_parallel",
        group_id=nearest.group_id,
        message=message,
        numbers={"devices": float(ranks)},
    )


def _hardware(
    state: ClusterState, job: PendingJob, _decision: Decision, _nearest: Candidate
) -> Step | None:
    for kind, hardware in (
        (PoolKind.ROLLOUT, job.profile.rollout_hardware),
        (PoolKind.TRAIN, job.profile.train_hardware),
    ):
        have = sorted({pool.hardware for pool in state.cluster.of_kind(kind)})
        if hardware not in have:
            there = f"; or profile it on {', '.join(have)}" if have else ""
            return Step(
                code="hardware",
                message=f"it was profiled on {hardware} and needs a {kind} pool of it "
                f"(rmux pool add -f){there}",
            )
    return None


def _link(
    _state: ClusterState, _job: PendingJob, _decision: Decision, nearest: Candidate
) -> Step | None:
    load = nearest.link
    if load is None:
        return None
    ends = f"{load.link.source} - {load.link.target}"
    return Step(
        code="link",
        group_id=nearest.group_id,
        message=f"a link {ends} of {format_rate(load.load_bps)} would carry it; it is declared "
        f"with {format_rate(load.link.rate_bps)} ([[links]] of the cluster file)",
        numbers={"load_bps": load.load_bps, "rate_bps": load.link.rate_bps},
    )


def _saturated(
    state: ClusterState, job: PendingJob, _decision: Decision, _nearest: Candidate
) -> Step | None:
    there = _decide(Index.of(state), job, rule="interval").best
    if there is None:
        return None
    return Step(
        code="saturated",
        group_id=there.group_id,
        message=f'rule "interval" would fit {place_name(there)}: it looks at SLOs, not saturation '
        "([policy] of the cluster file)",
    )


def _members(
    state: ClusterState, job: PendingJob, _decision: Decision, _nearest: Candidate
) -> Step | None:
    policy = replace(state.cluster.policy, max_members=0)
    roomy = replace(state, cluster=replace(state.cluster, policy=policy))
    there = _decide(Index.of(roomy), job).best
    if there is None or there.group_id is None:
        return None
    size = len(state.group(there.group_id).members) + 1
    return Step(
        code="members",
        group_id=there.group_id,
        message=f"max_members = {size} would fit {place_name(there)}; it is "
        f"{state.cluster.policy.max_members} ([policy] of the cluster file)",
        numbers={"max_members": float(size)},
    )


def _down(
    _state: ClusterState, _job: PendingJob, _decision: Decision, nearest: Candidate
) -> Step | None:
    return Step(
        code="down",
        group_id=nearest.group_id,
        message=f"rmux group up {nearest.group_id} lets jobs into it again",
    )


def _phases(
    _state: ClusterState, _job: PendingJob, _decision: Decision, _nearest: Candidate
) -> Step | None:
    return Step(code="phases", message="rmux profile SPEC measures its phases again")


Answer = Callable[[ClusterState, PendingJob, Decision, Candidate], Step | None]

ANSWERS: dict[str, Answer] = {
    "slo": _slo,
    "residency": _residency,
    "capacity": _capacity,
    "drained": _drained,
    "data_parallel": _data_parallel,
    "hardware": _hardware,
    "link": _link,
    "saturated": _saturated,
    "members": _members,
    "down": _down,
    "phases": _phases,
}


def _decide(index: Index, job: PendingJob, *, rule: str | None = None) -> Decision:
    return index.decide(spec=job.spec, profile=job.profile, job_id=job.job.id, rule=rule)
