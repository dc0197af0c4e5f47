"""Admission latency at 5 to 2,000 placed jobs, against a plain linear scan in the same run.

The scan judges every placement in every group with the same period and memory arithmetic, and no
pruning; both must find the same marginal cost. Times are of one decision, state already loaded.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime

from rmux.cluster import Cluster, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import Assignment, ClusterState, CoExecGroup, Member, cost_usd_per_h
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place.admit import admit
from rmux.place.candidates import Proposal, isolated, proposals_for
from rmux.place.period import period
from rmux.place.residency import memory_of
from scripts.benches._document import finish, flags, row

SIZES = (5, 50, 200, 500, 1000, 2000)
_BLOCK_JOBS = 50
_TOLERANCE_USD_PER_H = 1e-9
_GIB = 2**30


def newcomer(rng: random.Random) -> tuple[JobSpec, JobProfile]:
    rollout_s, train_s = rng.uniform(60, 600), rng.uniform(30, 400)
    spec = JobSpec(
        name=f"job-{rng.randrange(10**9)}",
        slo=rng.choice((1.1, 1.3, 1.5, 2.0)),
        rollout=RolloutSpec(devices=rng.choice((8, 8, 8, 16))),
        train=TrainSpec(devices=8),
    )
    profile = JobProfile(
        id=ProfileId("p"),
        spec_hash="x3:0",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="H20",
        train_hardware="H800",
        rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s, switch_s=1.5),
        train=PhaseEstimate(worst_s=train_s, expected_s=train_s, switch_s=4.5),
        sync_s=rng.uniform(1, 10),
        sync_bytes=16 * 10**9,
        rollout_resident_bytes=rng.randrange(50, 400) * _GIB,
        train_resident_bytes=rng.randrange(100, 500) * _GIB,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return spec, profile


def _pool(kind: PoolKind, hardware: str, usd_per_device_h: float, nodes: list[NodeId]) -> NodePool:
    name = PoolName(str(kind))
    return NodePool(
        name=name,
        kind=kind,
        hardware=hardware,
        usd_per_device_h=usd_per_device_h,
        nodes=tuple(
            Node(
                id=node,
                pool=name,
                host=node,
                device_kind=hardware,
                num_devices=8,
                host_memory_bytes=2048 * _GIB,
                reserved_memory_bytes=64 * _GIB,
            )
            for node in nodes
        ),
    )


def cluster_of(prefix: str, *, rollout: int, train: int) -> Cluster:
    names = {
        kind: [NodeId(f"{prefix}{kind[0]}{index}") for index in range(count)]
        for kind, count in (("rollout", rollout), ("train", train))
    }
    return Cluster(
        pools=(
            _pool(PoolKind.ROLLOUT, "H20", 1.85, names["rollout"]),
            _pool(PoolKind.TRAIN, "H800", 5.28, names["train"]),
        )
    )


def applied(
    state: ClusterState, assignment: Assignment, *, spec: JobSpec, profile: JobProfile
) -> ClusterState:
    member = Member(
        job_id=assignment.job_id,
        name=spec.name,
        slo=spec.slo,
        profile=profile,
        placement=assignment.placement,
    )
    groups = []
    for group in state.groups:
        if group.id == assignment.group_id:
            group = replace(
                group,
                members=(*group.members, member),
                nodes=(*group.nodes, *assignment.added_nodes),
            )
        groups.append(group)
    if assignment.group_id is None:
        fresh = GroupId(f"g-{assignment.job_id}")
        groups.append(CoExecGroup(id=fresh, members=(member,), nodes=assignment.added_nodes))
    return replace(state, groups=tuple(groups), revision=state.revision + 1)


def filled(prefix: str, jobs: int, rng: random.Random) -> ClusterState:
    """A cluster on which `jobs` random jobs were admitted one after another."""
    cluster = cluster_of(prefix, rollout=2 * jobs, train=jobs)
    state = ClusterState(revision=0, cluster=cluster, groups=())
    for index in range(jobs):
        spec, profile = newcomer(rng)
        decision = admit(state, spec=spec, profile=profile, job_id=JobId(f"{prefix}j{index}"))
        if decision.assignment is None:
            raise RuntimeError(f"job {index} did not fit: {decision.reason.message}")
        state = applied(state, decision.assignment, spec=spec, profile=profile)
    return state


def merged(blocks: list[ClusterState]) -> ClusterState:
    """One cluster out of several whose nodes have different names."""
    pools = tuple(
        replace(
            first, nodes=tuple(node for block in blocks for node in block.cluster.pools[at].nodes)
        )
        for at, first in enumerate(blocks[0].cluster.pools)
    )
    return ClusterState(
        revision=1,
        cluster=Cluster(pools=pools),
        groups=tuple(group for block in blocks for group in block.groups),
    )


def state_with(jobs: int, rng: random.Random) -> ClusterState:
    sizes = [_BLOCK_JOBS] * (jobs // _BLOCK_JOBS) + (
        [jobs % _BLOCK_JOBS] if jobs % _BLOCK_JOBS else []
    )
    return merged([filled(f"b{index}-", size, rng) for index, size in enumerate(sizes)])


def scan(state: ClusterState, *, spec: JobSpec, profile: JobProfile) -> float | None:
    """Marginal USD/h of the cheapest feasible place; every placement is judged."""
    costs = []
    for group in state.groups:
        for proposal in proposals_for(state, group, spec=spec, profile=profile):
            cost = _judged(state, proposal, group.members, spec=spec, profile=profile)
            if cost is not None:
                costs.append(cost)
    for proposal in isolated(state, spec=spec, profile=profile):
        cost = _judged(state, proposal, (), spec=spec, profile=profile)
        if cost is not None:
            costs.append(cost)
    return min(costs, default=None)


def _judged(
    state: ClusterState,
    proposal: Proposal,
    others: tuple[Member, ...],
    *,
    spec: JobSpec,
    profile: JobProfile,
) -> float | None:
    if proposal.placement is None:
        return None
    member = Member(
        job_id=JobId("new"),
        name=spec.name,
        slo=spec.slo,
        profile=profile,
        placement=proposal.placement,
    )
    members = (*others, member)
    order = [each.job_id for each in members]
    period_s = period(members, order=order).period_s
    if period_s > min(each.slo * each.profile.solo_s for each in members) + 1e-9:
        return None
    nodes = (*proposal.placement.rollout_nodes, *proposal.placement.train_nodes)
    if not all(memory.fits for memory in memory_of(members, state.cluster, nodes=nodes)):
        return None
    return cost_usd_per_h(proposal.added_nodes, state.cluster)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--decisions", type=int, default=25, help="of each kind and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    asked = parser.parse_args()
    rows = []
    differing = 0
    for jobs in asked.sizes:
        rng = random.Random(jobs)
        state = state_with(jobs, rng)
        admit_s, scan_s = [], []
        for index in range(asked.decisions):
            spec, profile = newcomer(rng)
            begun_s = time.perf_counter()
            decision = admit(state, spec=spec, profile=profile, job_id=JobId(f"n{index}"))
            admit_s.append(time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
            found = scan(state, spec=spec, profile=profile)
            scan_s.append(time.perf_counter() - begun_s)
            best = decision.best
            chosen = None if best is None else best.marginal_usd_per_h
            same = chosen is found or (
                chosen is not None
                and found is not None
                and abs(chosen - found) <= _TOLERANCE_USD_PER_H
            )
            differing += not same
        facts = {"jobs": jobs, "groups": len(state.groups)}
        rows.append(row(f"admit, {jobs} jobs", admit_s, unit="s", facts=facts))
        rows.append(row(f"linear scan, {jobs} jobs", scan_s, unit="s", facts=facts))
        rows.append(
            row(
                f"linear scan over admit, {jobs} jobs",
                [one / other for one, other in zip(scan_s, admit_s, strict=True)],
                unit="ratio",
                seconds={
                    "admit": sorted(admit_s)[len(admit_s) // 2],
                    "scan": sorted(scan_s)[len(scan_s) // 2],
                },
            )
        )
    rows.append(
        row(
            "decisions whose cost differs from the scan's",
            [float(differing)],
            unit="decisions",
            facts={"of": asked.decisions * len(asked.sizes)},
        )
    )
    finish("decision", rows, asked=asked)
    return 0 if differing == 0 else 7


if __name__ == "__main__":
    sys.exit(main())
