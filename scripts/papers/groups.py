"""Fixed groups: the micro-benchmarks, stragglers that move, sharing without a plan."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from rmux.cluster import DeviceId
from rmux.group import CoExecGroup, Member, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.place.period import Loop, period_of
from rmux.place.sim import bundles, engine
from rmux.place.sim.bundles import FIGURE_10
from rmux.place.sim.durations import Fixed, HeavyTailed, PerJob
from rmux.place.sim.tails import Migration
from rmux.place.sim.world import World
from scripts.papers.generator import profile_of
from scripts.papers.lines import Figures, Line, Study

FLAT_SYNC_S = {"A1": 7.5, "A2": 7.5, "D1": 7.5, "D2": 7.5, "E": 13.8, "C": 33.8}
"""Of Solo-D, whose sync is veRL's: the paper's 8:8 figures, C's of 16:16."""
OWN_SYNC_S = {"A1": 0.9, "A2": 0.9, "D1": 0.9, "D2": 0.9, "E": 1.7, "C": 12.3}
"""Of RollMux, from the same figures."""
TABLE_4 = {"temporal": 0.016, "train": 0.051, "spatial": 0.098}
_BENCHES = {
    "temporal": ("(a) temporal, A × 2", "1.82", "1.24", "1.06–1.17"),
    "train": ("(b) train, D × 2 + E", "1.90", "1.41–1.57", "1.26–1.33"),
    "spatial": ("(c) spatial, C + D × 2", "1.99", "1.27–1.39", "1.12–1.14"),
}


def micro(seed: int) -> Figures:
    """Per cost and relative to Solo-D, whose iterations have the flat sync."""
    world, made = World(), {}
    for name, bench in FIGURE_10.items():
        plain = bundles.solo(bench.jobs, world)
        solo = replace(
            plain,
            iteration_s={job: s + FLAT_SYNC_S[job] for job, s in plain.iteration_s.items()},
        )
        heavy = {job.spec.name: float(job.spec.rollout.devices**2) for job in bench.jobs}
        made[f"{name} rmux"] = bundles.rmux(bench, world, sync_s=OWN_SYNC_S).per_usd(solo)
        made[f"{name} rmux, overhead"] = bundles.rmux(bench, world, overhead=TABLE_4[name]).per_usd(
            solo
        )
        made[f"{name} rmux, by nodes"] = bundles.rmux(bench, world, sync_s=OWN_SYNC_S).per_usd(
            solo, weights=heavy
        )
        made[f"{name} colocate"] = bundles.colocate(bench.jobs, world).per_usd(solo)
        made[f"{name} gavel"] = bundles.gavel(bench.jobs, world).per_usd(solo)
    return made


def _micro_lines() -> Mapping[str, Line]:
    lines: dict[str, Line] = {}
    read = "phase times are read off Figure 10; every job counts the same, tokens are not stated"
    for name, (what, ours, colocate, gavel) in _BENCHES.items():
        lines[f"{name} rmux"] = Line(what=f"{what}: rmux", paper=ours, differs=read)
        lines[f"{name} rmux, by nodes"] = Line(
            what=f"{what}: rmux, jobs weighed by GPUs of both pools", differs="not shown there"
        )
        lines[f"{name} rmux, overhead"] = Line(
            what=f"{what}: rmux with the paper's own overhead (Table 4)", paper=ours, differs=read
        )
        lines[f"{name} colocate"] = Line(
            what=f"{what}: co-location", paper=colocate, differs="rollout on H800 × 4.0/3.35"
        )
        lines[f"{name} gavel"] = Line(
            what=f"{what}: Gavel+", paper=gavel, differs="modelled without its cold starts"
        )
    return lines


PAIRS = {
    "[7B-4k] × 2": ((81, 77, "math-7b-math500"), (81, 77, "math-7b-math500"), "1.12"),
    "[7B-8k] × 2": ((134, 113, "math-7b-math500"), (134, 113, "math-7b-math500"), "1.19"),
    "[7B-8k + 14B-8k]": ((134, 113, "math-7b-math500"), (239, 197, "14b-math500"), "1.06"),
    "[14B-8k] × 2": ((239, 197, "14b-math500"), (239, 197, "14b-math500"), "1.28"),
}
"""Worst-case phase seconds of Figure 2, and whose response lengths."""
NODE_GPUS = 8


LENGTHS = Path("tests/data/lengths/skythought.csv")


LIMITS = {"math-7b-math500": 5407}
"""Tokens; the other set ran to 32 k."""
FULL_LIMIT = 32_768


@cache
def lengths_of(name: str) -> tuple[tuple[int, ...], int]:
    """Response lengths of one real set and their limit, tokens."""
    limit = LIMITS.get(name, FULL_LIMIT)
    with LENGTHS.open(newline="") as file:
        found = [int(row["approx_tokens"]) for row in csv.DictReader(file) if row["set"] == name]
    return tuple(min(length, limit) for length in found), limit


def migration(seed: int) -> Figures:
    """Iterations per second of two jobs on one node pair with moved stragglers over without."""
    made: dict[str, float] = {}
    for name, (*jobs, _) in PAIRS.items():
        group, sources = _pair(jobs, seed)
        for key, trigger in (("gain", None), ("fixed", 0.8)):
            rates = []
            for moving in (None, Migration(batches=sources, trigger=trigger)):
                found = engine.run(
                    [group],
                    engine.Options(
                        iterations=16,
                        leave=False,
                        durations=PerJob(Fixed(), sources),
                        seed=seed,
                        migration=moving,
                    ),
                )
                rates.append(sum(1 / one.iteration_s() for one in found.jobs.values()))
            made[f"{name} {key}"] = rates[1] / rates[0]
    return made


def _pair(
    jobs: list[tuple[float, float, str]], seed: int
) -> tuple[CoExecGroup, dict[JobId, HeavyTailed]]:
    rollout = tuple(DeviceId(NodeId("r0"), gpu) for gpu in range(NODE_GPUS))
    train = (DeviceId(NodeId("t0"), 0),)
    members, sources = [], {}
    for index, (rollout_s, train_s, lengths) in enumerate(jobs):
        job_id = JobId(f"j-{index}")
        tokens, limit = lengths_of(lengths)
        members.append(
            Member(
                job_id=job_id,
                name=job_id,
                slo=3.0,
                profile=profile_of(rollout_s, train_s),
                placement=Placement(rollout=rollout, train=train),
            )
        )
        sources[job_id] = HeavyTailed(
            Fixed(), tokens, limit, num_samples=256, seed=1000 * seed + index
        )
    nodes = (NodeId("r0"), NodeId("t0"))
    return CoExecGroup(id=GroupId("g"), members=tuple(members), nodes=nodes), sources


def naive(seed: int) -> Figures:
    """Figure 3: two jobs on one rollout node, each with train nodes of its own."""
    loops = [
        Loop(
            job_id=JobId(name),
            rollout_s=rollout_s,
            train_s=train_s,
            off_device_s=0.0,
            rollout=frozenset({DeviceId(NodeId("r"), 0)}),
            train=frozenset({DeviceId(NodeId(f"t-{name}"), 0)}),
        )
        for name, rollout_s, train_s in (("J1", 262, 87), ("J2", 310, 121))
    ]
    shared_s = period_of(loops).period_s
    return {loop.job_id: shared_s / loop.solo_s for loop in loops}


MICRO = Study(
    name="micro",
    title="Figure 10 and Table 4: throughput per cost relative to Solo-D",
    figures=micro,
    lines=_micro_lines(),
    drawn=False,
)
MIGRATION = Study(
    name="migration",
    title="Migration of stragglers: throughput with over without",
    figures=migration,
    lines={
        f"{name} {key}": Line(
            what=f"{name}: {what}",
            paper=paper,
            differs="lengths of open models; 32 responses per GPU, and steps of one length",
        )
        for name, (_, _, paper) in PAIRS.items()
        for key, what in (("gain", "by predicted gain"), ("fixed", "at 80 % of the responses"))
    },
)
NAIVE = Study(
    name="naive",
    title="Figure 3: two jobs share a rollout node and nothing else",
    figures=naive,
    lines={
        "J1": Line(what="slowdown of J1 (4B, 8K)", paper="1.40", differs="one of 1.40 and 1.64"),
        "J2": Line(what="slowdown of J2 (8B, 8K)", paper="1.64", differs="one of 1.40 and 1.64"),
    },
    drawn=False,
)

STUDIES = (MICRO, MIGRATION, NAIVE)
