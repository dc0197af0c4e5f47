"""Ablations, decision times and settings of one knob each."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from rmux.cluster import Policy
from rmux.group import ClusterState
from rmux.ids import JobId
from rmux.place.index import Index
from rmux.place.nodes_needed import Item
from rmux.place.packing import Columns, Prices
from rmux.place.sim import trace
from rmux.place.sim.bundles import FIGURE_10
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.replay import Durations
from rmux.place.sim.workload import Drawing, Mix, Workload
from rmux.place.sim.world import World
from scripts.papers.generator import two_weeks
from scripts.papers.lines import Figures, Line, Study
from scripts.papers.replays import of_window, run

SWITCHES = {
    "7B": ((38.8, 32.7), (0.9, 4.1)),
    "14B": ((60.4, 59.0), (1.8, 4.7)),
    "32B": ((81.7, 81.2), (1.7, 5.9)),
}
"""Cold and warm starts of rollout and train, seconds (Figure 4)."""


def warm_start(seed: int) -> Figures:
    """Throughput that two equal jobs on one node pair lose when each phase begins cold."""
    made: dict[str, float] = {}
    for size, (cold_s, warm_s) in SWITCHES.items():
        for name, job in (("A", FIGURE_10["temporal"].jobs[0]), ("D", FIGURE_10["train"].jobs[0])):
            periods_s = [_pair_s(_switched(job, switch_s)) for switch_s in (warm_s, cold_s)]
            made[f"{size} {name}"] = 100 * (1 - periods_s[0] / periods_s[1])
    return made


def _pair_s(job: SimJob) -> float:
    """Of two such jobs on one rollout and one train node."""
    rollout_s, train_s = job.profile.rollout.planned_s, job.profile.train.planned_s
    return max(job.solo_s, 2 * rollout_s, 2 * train_s)


def _switched(job: SimJob, switch_s: tuple[float, float]) -> SimJob:
    profile = job.profile
    return replace(
        job,
        profile=replace(
            profile,
            rollout=replace(profile.rollout, switch_s=switch_s[0]),
            train=replace(profile.train, switch_s=switch_s[1]),
        ),
    )


def settings(seed: int) -> Figures:
    """A single job, low load, all rollout-heavy, other prices, fixed pools, tenants."""
    made: dict[str, float] = {}
    jobs = of_window(seed)
    made["single"] = _over_solo(jobs[:1], seed)
    sparse = [replace(job, arrival_s=4 * job.arrival_s) for job in jobs[:100]]
    made["low load"] = _over_solo(sparse, seed)
    made["all rollout-heavy"] = _over_solo(of_window(seed, mix=Mix.ROLLOUT_HEAVY), seed)
    for ratio in range(1, 6):
        world = World(train_usd_per_gpu_h=1.85 * ratio)
        made[f"price {ratio}"] = _over_solo(jobs, seed, world=world)
    fixed = World(rollout_nodes=8, train_nodes=6)
    found = run(
        jobs[:150],
        ("rollmux-static", "solo"),
        world=fixed,
        seed=seed,
        durations=Durations.WORK,
        with_bound=False,
    )
    for name, metrics in found.items():
        made[f"fixed {name} wait"] = metrics.wait_s.mean / 3600
        made[f"fixed {name} jct"] = metrics.jct_s.mean / 3600
    return made | _tenants(seed)


def _over_solo(jobs: list[SimJob], seed: int, *, world: World | None = None) -> float:
    found = run(jobs, ("rollmux-static", "solo"), seed=seed, world=world, with_bound=False)
    return found["solo"].cost_usd_per_h / found["rollmux-static"].cost_usd_per_h


TWO_CLUSTERS = Path("tests/data/traces/philly_two_clusters.csv")


def _tenants(seed: int) -> Figures:
    rows = trace.load(str(TWO_CLUSTERS))
    jobs = list(Workload(rows, Drawing(seed=seed)))
    found = run(jobs, ("rollmux-static", "solo"), seed=seed, with_bound=False)
    ours, solo = found["rollmux-static"], found["solo"]
    ratios = [
        solo.cost_by_tenant[name] / usd for name, usd in ours.cost_by_tenant.items() if usd > 0
    ]
    bill = sum(ours.cost_by_tenant.values())
    return {
        "tenants least": min(ratios),
        "tenants most": max(ratios),
        "tenants bill": abs(bill / ours.cost_usd - 1),
    }


SIZES = {5: "5.6", 9: "6.5", 13: "7.6", 100: "41.9", 500: "198", 1000: "318", 2000: "591"}
OPT_SIZES = {5: "113", 9: "> 60 000", 13: "> 5 h", 40: "–", 60: "–"}


def latency(seed: int) -> Figures:
    """Table 5: one decision, and the best packing of all jobs."""
    made: dict[str, float] = {}
    rng = np.random.default_rng(seed)
    for size in SIZES:
        jobs = _crowd(size + 20, rng)
        cluster = replace(World().cluster, policy=Policy(max_members=5))
        index = Index.of(ClusterState(revision=0, cluster=cluster, groups=()))
        took = []
        for number, job in enumerate(jobs):
            began_s = time.perf_counter()
            decision = index.decide(spec=job.spec, profile=job.profile, job_id=job.id)
            if number >= size:
                took.append(time.perf_counter() - began_s)
            elif decision.assignment is not None:
                index.apply(decision.assignment, spec=job.spec, profile=job.profile)
        made[f"decide {size}"] = 1000 * float(np.median(took))
    for size in OPT_SIZES:
        columns = Columns(Prices(rollout_usd_per_h=14.8, train_usd_per_h=42.24))
        jobs = _crowd(size, rng)
        began_s = time.perf_counter()
        for job in jobs:
            columns.add(Item.of(job.id, job.spec, job.profile))
        columns.solve(time_limit_s=60)
        made[f"opt {size}"] = 1000 * (time.perf_counter() - began_s)
    return made


def _crowd(count: int, rng: np.random.Generator) -> list[SimJob]:
    """Jobs of Table 6 that are all there at once."""
    base = of_window(int(rng.integers(2**31)))
    many = [base[index % len(base)] for index in range(count)]
    return [
        replace(
            job,
            id=JobId(f"c-{index:05d}"),
            arrival_s=0.0,
            spec=replace(job.spec, slo=float(rng.uniform(1, 2))),
        )
        for index, job in enumerate(many)
    ]


def spread_of_two_weeks(seed: int) -> Figures:
    """What was drawn, beside what is stated."""
    jobs = two_weeks(seed)
    hours = [job.duration_s / 3600 for job in jobs]
    return {
        "mean": float(np.mean(hours)),
        "longest": max(hours),
        "span": max(job.arrival_s + job.duration_s for job in jobs) / 3600,
        "solo": math.fsum(
            h * World().solo_usd_per_h(job) for h, job in zip(hours, jobs, strict=True)
        )
        / 1000,
    }


WARM = Study(
    name="warm-start",
    title="Warm starts off: throughput that two jobs on one node pair lose",
    figures=warm_start,
    lines={
        f"{size} {name}": Line(
            what=f"two jobs with the phases of {name} and the switches of {size}",
            unit="%",
            paper="up to 45",
            differs="which jobs is not stated there",
        )
        for size in SWITCHES
        for name in ("A", "D")
    },
    drawn=False,
)
SETTINGS = Study(
    name="settings",
    title="Other settings: Solo-D ÷ rmux that moves nobody",
    figures=settings,
    lines={
        "single": Line(what="a single job"),
        "low load": Line(what="100 jobs arriving four times as slowly"),
        "all rollout-heavy": Line(what="all rollout-heavy"),
        **{
            f"price {ratio}": Line(what=f"train GPU {ratio} × the price of a rollout GPU")
            for ratio in range(1, 6)
        },
        "fixed rollmux-static wait": Line(what="150 jobs, pools 8:6, rmux: mean wait", unit="h"),
        "fixed solo wait": Line(what="150 jobs, pools 8:6, Solo-D: mean wait", unit="h"),
        "fixed rollmux-static jct": Line(what="150 jobs, pools 8:6, rmux: mean JCT", unit="h"),
        "fixed solo jct": Line(what="150 jobs, pools 8:6, Solo-D: mean JCT", unit="h"),
        "tenants least": Line(what="two Philly clusters as tenants: who gains least"),
        "tenants most": Line(what="two Philly clusters as tenants: who gains most"),
        "tenants bill": Line(what="sum over tenants against the bill, relative difference"),
    },
)
TABLE_5 = Study(
    name="table-5",
    title="Table 5: time of one decision",
    figures=latency,
    lines={
        **{
            f"decide {size}": Line(
                what=f"{size} jobs: one decision", unit="ms", paper=paper, differs="one core here"
            )
            for size, paper in SIZES.items()
        },
        **{
            f"opt {size}": Line(
                what=f"{size} jobs: best packing",
                unit="ms",
                paper=paper,
                differs="set partitioning here, brute force there",
            )
            for size, paper in OPT_SIZES.items()
        },
    },
)
DRAWN = Study(
    name="drawn",
    title="What the generator of the two weeks drew",
    figures=spread_of_two_weeks,
    lines={
        "mean": Line(what="mean duration", unit="h", paper="27.9"),
        "longest": Line(what="longest duration", unit="h"),
        "span": Line(what="first arrival to last departure", unit="h", paper="370.2"),
        "solo": Line(what="Solo-D in all", unit="thousand USD", paper="347.9"),
    },
)
STUDIES = (DRAWN, WARM, TABLE_5, SETTINGS)
