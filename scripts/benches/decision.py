"""Admission latency at 5 to 100,000 placed jobs, beside a plain linear scan in the same run.

A decision is timed end to end with the state loaded: bound, judge, explain the winner, apply. The
scan is tests/support/plain_scan.py: the rule written plainly, every placement of every group in
turn; of the paper's rule it is Algorithm 1. Both must choose the same place. At large sizes the
scan runs for the first few jobs only (`linear_scan_n`). One core.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rmux.cluster import Cluster, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import ClusterState
from rmux.ids import JobId, NodeId, PoolName, ProfileId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place.decision import Decision
from rmux.place.index import Index
from scripts.benches._document import finish, flags, percentile, row
from tests.support import plain_scan

SIZES = (5, 50, 500, 2000, 10_000, 100_000)
SCANS = {"interval": plain_scan.interval, "paper": plain_scan.paper}
WARM_UP = 3
"""Decisions before the timed ones."""
_BLOCK_JOBS = 50
_GIB = 2**30

Asked = tuple[JobSpec, JobProfile, Decision]


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


def filled(prefix: str, jobs: int, rng: random.Random) -> ClusterState:
    """A cluster on which `jobs` random jobs were admitted one after another."""
    cluster = cluster_of(prefix, rollout=2 * jobs, train=jobs)
    index = Index.of(ClusterState(revision=0, cluster=cluster, groups=()))
    for number in range(jobs):
        spec, profile = newcomer(rng)
        decision = index.decide(spec=spec, profile=profile, job_id=JobId(f"{prefix}j{number}"))
        if decision.assignment is None:
            raise RuntimeError(f"job {number} did not fit: {decision.reason.message}")
        index.apply(decision.assignment, spec=spec, profile=profile)
    return index.state()


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


def measured(
    index: Index, rng: random.Random, *, decisions: int, rule: str
) -> tuple[list[float], list[Asked]]:
    """Seconds of each decision with its application; the jobs that were asked for.

    The job leaves again after each, which is not timed, so every decision meets the same state.
    """
    seconds, asked = [], []
    for number in range(-WARM_UP, decisions):
        spec, profile = newcomer(rng)
        job_id = JobId(f"n{number}")
        begun_s = time.perf_counter()
        decision = index.decide(spec=spec, profile=profile, job_id=job_id, rule=rule)
        if decision.assignment is not None:
            index.apply(decision.assignment, spec=spec, profile=profile)
        if number >= 0:
            seconds.append(time.perf_counter() - begun_s)
            asked.append((spec, profile, decision))
        if decision.assignment is not None:
            index.remove(job_id)
    return seconds, asked


def scanned(state: ClusterState, asked: list[Asked], *, rule: str) -> tuple[list[float], int]:
    """Seconds of the plain scan for each of the jobs, and how many of its choices differ."""
    seconds, differing = [], 0
    for spec, profile, decision in asked:
        begun_s = time.perf_counter()
        choice = SCANS[rule](state, spec=spec, profile=profile, job_id=decision.job_id)
        seconds.append(time.perf_counter() - begun_s)
        differing += not agrees(decision, choice)
    return seconds, differing


def agrees(decision: Decision, choice: plain_scan.Choice | None) -> bool:
    assignment = decision.assignment
    if assignment is None or choice is None:
        return assignment is None and choice is None
    return (assignment.group_id, assignment.placement) == (choice.group_id, choice.placement)


def table_row(
    jobs: int, groups: int, rule: str, decide_s: list[float], scan_s: list[float]
) -> dict[str, Any]:
    """One line of the table: decide and apply, beside the scan of the same rule."""
    middle_s, scan_middle_s = percentile(decide_s, 50), percentile(scan_s, 50)
    return row(
        f"decide and apply, {jobs} jobs, {rule}",
        decide_s,
        unit="s",
        seconds={"linear scan": scan_middle_s},
        facts={"groups": groups, "linear_scan_n": len(scan_s)},
        keys={
            "jobs": jobs,
            "rule": rule,
            "p50_s": middle_s,
            "p95_s": percentile(decide_s, 95),
            "max_s": max(decide_s),
            "linear_scan_p50_s": scan_middle_s,
            "linear_scan_n": len(scan_s),
        },
    )


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--decisions", type=int, default=200, help="of each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rules", nargs="+", default=list(SCANS), choices=list(SCANS))
    parser.add_argument(
        "--scan-jobs", type=int, default=20_000, help="jobs that the scans of one size may see"
    )
    asked = parser.parse_args()
    rows = []
    differing = compared = 0
    for jobs in asked.sizes:
        rng = random.Random(jobs)
        state = state_with(jobs, rng)
        index = Index.of(state)
        for rule in asked.rules:
            decide_s, told = measured(index, rng, decisions=asked.decisions, rule=rule)
            few = max(1, min(asked.decisions, asked.scan_jobs // jobs))
            scan_s, others = scanned(state, told[:few], rule=rule)
            differing, compared = differing + others, compared + len(scan_s)
            rows.append(table_row(jobs, len(state.groups), rule, decide_s, scan_s))
    what = "decisions that differ from the scan's"
    rows.append(row(what, [float(differing)], unit="decisions", facts={"of": compared}))
    finish("decision", rows, asked=asked)
    return 0 if differing == 0 else 7


if __name__ == "__main__":
    sys.exit(main())
