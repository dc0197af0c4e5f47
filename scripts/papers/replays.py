"""Whole replays: the two weeks of production, and the simulated arrivals of Figure 14."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmux.place.sim import trace
from rmux.place.sim.bound import Bounder
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.metrics import Metrics, measure
from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.replay import Durations, replay
from rmux.place.sim.workload import Drawing, Mix, Workload
from rmux.place.sim.world import World
from scripts.papers.generator import two_weeks
from scripts.papers.lines import Figures, Line, Study

WINDOW = Path("tests/data/traces/philly_300jobs.csv")
OURS = ("rollmux", "rollmux-static", "rollmux-paper")
OTHERS = ("random", "random-packed", "most-idle", "most-idle-packed")

_UNSTATED = "GPUs per simulated job are not stated there; here 8+8, so costs per hour are lower"
_WINDOW = "300 jobs of another Philly window (579 h, mean 14.4 h); Opt is exact and free to move"


def run(
    jobs: Sequence[SimJob],
    policies: Sequence[str],
    *,
    world: World | None = None,
    max_members: int = 5,
    seed: int = 0,
    durations: Durations = Durations.HOLD,
    with_bound: bool = True,
) -> dict[str, Metrics | float]:
    """Metrics by policy; 'opt' and 'lp' in USD/h, of the first policy's standing jobs."""
    world = world or World()
    setting = Setting(world=world, max_members=max_members, seed=seed)
    found: dict[str, Metrics | float] = {}
    for name in policies:
        done = replay(jobs, make(name, setting), world=world, durations=durations)
        if with_bound and "lp" not in found:
            bound = Bounder(jobs, setting).of(done)
            found["lp"] = bound.lp_usd_per_h
            if bound.opt_usd_per_h is not None:
                found["opt"] = bound.opt_usd_per_h
        found[name] = measure(done)
    return found


def of_window(
    seed: int, *, mix: Mix = Mix.MIXED, slo: tuple[float, float] = (1, 2)
) -> list[SimJob]:
    """The 300-job Philly window with phase times of Table 6."""
    return list(Workload(trace.load(str(WINDOW)), Drawing(mix=mix, slo=slo, seed=seed)))


def production(seed: int) -> Figures:
    jobs = two_weeks(seed)
    found = run(jobs, ("solo", "colocate", "gavel", *OURS), seed=seed)
    ours, solo, colocate = found["rollmux"], found["solo"], found["colocate"]
    figures = {
        "solo": solo.cost_usd_per_h,
        "colocate": colocate.cost_usd_per_h,
        "gavel": found["gavel"].cost_usd_per_h,
        "ours": ours.cost_usd_per_h,
        "over solo": solo.cost_usd_per_h / ours.cost_usd_per_h,
        "over colocate": colocate.cost_usd_per_h / ours.cost_usd_per_h,
        "static over solo": solo.cost_usd_per_h / found["rollmux-static"].cost_usd_per_h,
        "paper over solo": solo.cost_usd_per_h / found["rollmux-paper"].cost_usd_per_h,
        "peak train": float(ours.train_peak_gpus),
        "peak rollout": float(ours.rollout_peak_gpus),
        "rollout bubbles": 100 * (solo.rollout_bubbles - ours.rollout_bubbles),
        "train bubbles": 100 * (solo.train_bubbles - ours.train_bubbles),
        "attained": 100 * ours.slo_attainment_absolute,
        "moves": ours.moves / ours.jobs,
    }
    arrivals = sum(found["rollmux-paper"].placed.values())
    for kind in ("direct packing", "rollout scaling", "isolated group"):
        figures[kind] = 100 * found["rollmux-paper"].placed.get(kind, 0) / arrivals
    if "opt" in found:
        figures["over opt"] = ours.cost_usd_per_h / found["opt"]
    figures["over lp"] = ours.cost_usd_per_h / found["lp"]
    return figures


_JOBS = "jobs are synthesised to the stated marginals; how often each model is assumed"

PRODUCTION = Study(
    name="two-weeks",
    title="Two weeks of production: 200 jobs, SLO U(1,2)",
    figures=production,
    lines={
        "solo": Line(what="Solo-D", unit="USD/h", paper="940", differs=_JOBS),
        "colocate": Line(
            what="co-location (veRL)",
            unit="USD/h",
            paper="710",
            differs="rollout on H800 is taken 4.0/3.35 as long, by memory bandwidth",
        ),
        "gavel": Line(what="Gavel+", unit="USD/h", differs="not shown there for this replay"),
        "ours": Line(
            what="rmux", unit="USD/h", paper="510", differs="moves are priced and charged"
        ),
        "over solo": Line(what="Solo-D ÷ rmux", paper="1.84", differs=_JOBS),
        "over colocate": Line(what="co-location ÷ rmux", paper="1.38", differs=_JOBS),
        "static over solo": Line(
            what="Solo-D ÷ rmux that moves nobody", paper="1.84", differs="interval rule"
        ),
        "paper over solo": Line(what="Solo-D ÷ Algorithm 1", paper="1.84", differs=_JOBS),
        "over opt": Line(what="rmux ÷ Opt re-packed at every event", differs="not shown there"),
        "over lp": Line(what="rmux ÷ bound of the linear program", differs="not shown there"),
        "peak train": Line(what="most train GPUs", unit="GPUs", paper="152", differs=_JOBS),
        "peak rollout": Line(what="most rollout GPUs", unit="GPUs", paper="216", differs=_JOBS),
        "rollout bubbles": Line(
            what="rollout bubbles less than Solo-D",
            unit="points",
            paper="24.4",
            differs="whether there it is points or percent is not stated",
        ),
        "train bubbles": Line(
            what="train bubbles less than Solo-D",
            unit="points",
            paper="43.1",
            differs="whether there it is points or percent is not stated",
        ),
        "direct packing": Line(
            what="arrivals packed directly", unit="%", paper="60.5", differs="of Algorithm 1"
        ),
        "rollout scaling": Line(
            what="arrivals with rollout scaling", unit="%", paper="15", differs="of Algorithm 1"
        ),
        "isolated group": Line(
            what="arrivals in a new group", unit="%", paper="24.5", differs="of Algorithm 1"
        ),
        "attained": Line(what="jobs within their SLO", unit="%", paper="100", differs=_JOBS),
        "moves": Line(what="moves per job", unit="moves", differs="Algorithm 1 moves nobody"),
    },
)


def sensitivity(name: str, what: str, paper: Sequence[str], **how: object) -> Study:
    """One setting of Figure 14: ours, Random, Most-idle ÷ Opt, and SLO attainment."""
    max_members = int(str(how.pop("max_members", 5)))

    def figures(seed: int) -> Figures:
        jobs = of_window(seed, **how)  # type: ignore[arg-type]
        found = run(jobs, (*OURS, *OTHERS), max_members=max_members, seed=seed)
        opt = found["opt"]
        made = {f"{policy}/opt": found[policy].cost_usd_per_h / opt for policy in (*OURS, *OTHERS)}
        made |= {
            f"{policy} attained": 100 * found[policy].slo_attainment_absolute
            for policy in ("rollmux", "random", "most-idle")
        }
        made["opt"] = opt
        made["opt/lp"] = opt / found["lp"]
        return made

    ours, random, idle = paper
    return Study(
        name=name,
        title=f"Figure 14: {what}",
        figures=figures,
        lines={
            "opt": Line(what="Opt", unit="USD/h", differs=_UNSTATED),
            "opt/lp": Line(what="Opt ÷ bound of the linear program", differs="not shown there"),
            "rollmux/opt": Line(what="rmux ÷ Opt", paper=ours, differs=_WINDOW),
            "rollmux-static/opt": Line(
                what="rmux that moves nobody ÷ Opt", paper=ours, differs=_WINDOW
            ),
            "rollmux-paper/opt": Line(what="Algorithm 1 ÷ Opt", paper=ours, differs=_WINDOW),
            "random/opt": Line(
                what="Random ÷ Opt", paper=random, differs="provisions nodes where none fit"
            ),
            "random-packed/opt": Line(
                what="Random ÷ Opt, always packed", paper=random, differs="the other reading"
            ),
            "most-idle/opt": Line(
                what="Most-idle ÷ Opt", paper=idle, differs="provisions nodes where none fit"
            ),
            "most-idle-packed/opt": Line(
                what="Most-idle ÷ Opt, always packed", paper=idle, differs="the other reading"
            ),
            "rollmux attained": Line(what="rmux: jobs within SLO", unit="%", paper="100"),
            "random attained": Line(what="Random: jobs within SLO", unit="%", paper="37–58"),
            "most-idle attained": Line(what="Most-idle: jobs within SLO", unit="%", paper="42–61"),
        },
    )


SENSITIVITY = (
    sensitivity("mixed", "Mixed, SLO U(1,2), groups of 5", ("1.06", "1.97", "1.66")),
    sensitivity("balanced", "Balanced", ("1.12", "2.00", "1.75"), mix=Mix.BALANCED),
    sensitivity("rollout-heavy", "Rollout-heavy", ("1.10", "1.92", "1.89"), mix=Mix.ROLLOUT_HEAVY),
    sensitivity("train-heavy", "Train-heavy", ("1.01", "1.72", "1.38"), mix=Mix.TRAIN_HEAVY),
    sensitivity("slo-1.2", "SLO 1.2", ("1.07", "2.09", "1.73"), slo=(1.2, 1.2)),
    sensitivity("slo-1.5", "SLO 1.5", ("1.07", "1.95", "1.75"), slo=(1.5, 1.5)),
    sensitivity("slo-2.0", "SLO 2.0", ("1.07", "1.89", "1.59"), slo=(2.0, 2.0)),
    sensitivity("groups-2", "groups of 2", ("1.10", "2.01", "1.68"), max_members=2),
    sensitivity("groups-3", "groups of 3", ("1.07", "1.91", "1.59"), max_members=3),
    sensitivity("groups-4", "groups of 4", ("1.06", "2.15", "1.71"), max_members=4),
)
