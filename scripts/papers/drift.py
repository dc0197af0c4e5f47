"""Phase times that leave the plan: what is done about it, what that keeps and costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from rmux.ids import JobId
from rmux.place.sim.durations import (
    MIXED,
    Drift,
    Drifting,
    Durations,
    Fixed,
    Interference,
    Jittered,
    LinkJitter,
    SlowReward,
    Template,
)
from rmux.place.sim.faults import Failures
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.phases import Answer, Options, Result, Source, run
from scripts.papers.generator import two_weeks
from scripts.papers.lines import Figures, Line, Study

NUM_JOBS = 60
"""Of the two weeks, within the same span."""
SYNC_S = 4.0
THRESHOLDS = (0.9, 0.95, 1.0)
THRESHOLD = 0.9
HEADROOM = 1.1
"""By which the answer of rmux plans a job admitted again beyond what was seen."""

Maker = Callable[[Source], Durations]


def jobs_of(seed: int) -> list[SimJob]:
    """With a sync, so that jitter of the link has something to bear on."""
    return [
        replace(job, profile=replace(job.profile, sync_s=SYNC_S))
        for job in two_weeks(seed, num_jobs=NUM_JOBS)
    ]


def drifting(template: Template | None, jobs: Sequence[SimJob], seed: int) -> Maker:
    """One template for all at scale 1, or one drawn for each job."""
    rng = random.Random(f"{seed}/templates")
    drifts = {
        job.id: rng.choice(MIXED) if template is None else Drift(template=template) for job in jobs
    }
    return lambda source: _drifting(Jittered(Fixed(), 0.02), drifts, source)


def _drifting(base: Durations, drifts: dict[JobId, Drift], source: Source) -> Durations:
    return Drifting(base, drifts, source.iterations)


def _options(answer: Answer, durations: Maker, seed: int, **more: object) -> Options:
    return replace(Options(answer=answer, durations=durations, seed=seed), **more)  # type: ignore[arg-type]


def drift(template: Template | None) -> Callable[[int], Figures]:
    def figures(seed: int) -> Figures:
        jobs = jobs_of(seed)
        durations = drifting(template, jobs, seed)
        ours = {"threshold": THRESHOLD, "headroom": HEADROOM}
        found = {
            answer: run(jobs, _options(answer, durations, seed, **more))
            for answer, more in (
                (Answer.STATIC, {}),
                (Answer.RESUBMIT, {}),
                (Answer.REPLACE, ours),
                (Answer.REGROUP, {}),
            )
        }
        made: dict[str, float] = {}
        for answer, result in found.items():
            made |= _figures(answer.value, result)
        regroup = found[Answer.REGROUP].usd_per_h
        for answer in (Answer.STATIC, Answer.RESUBMIT, Answer.REPLACE):
            made[f"{answer.value} cost"] = found[answer].usd_per_h / regroup
        return made

    return figures


def _figures(name: str, result: Result) -> dict[str, float]:
    return {
        f"{name} kept": 100 * result.attainment,
        f"{name} kept as submitted": 100 * result.attainment_submitted,
        f"{name} kept relative": 100 * result.attainment_relative,
        f"{name} moves": result.moves / len(result.jobs),
        f"{name} lost": 100 * result.moved_s / max(1.0, result.span_s * len(result.jobs)),
        f"{name} usd": result.usd_per_h,
    }


_ANSWERS = {
    "static": "nothing is done",
    "resubmit": "stop and resubmit a job when its group saturates",
    "replace": "rmux: admit the one job again whose bound broke",
    "regroup": "regroup all jobs every hour",
}


def drift_study(name: str, template: Template | None, cost: str, kept: str) -> Study:
    setting = "60 jobs of the two weeks; templates grow times by 0.3 over a life, and jitter by 2 %"
    lines: dict[str, Line] = {}
    for answer, what in _ANSWERS.items():
        paper = kept if answer == "resubmit" else "–"
        lines[f"{answer} kept"] = Line(
            what=f"{what}: iterations within SLO × worst-case solo, as last admitted",
            unit="%",
            paper=paper,
            differs=setting,
        )
        lines[f"{answer} kept as submitted"] = Line(
            what=f"{what}: … as first submitted", unit="%", paper=paper, differs=setting
        )
        lines[f"{answer} kept relative"] = Line(
            what=f"{what}: … of the iteration's own solo time", unit="%", paper=paper
        )
        lines[f"{answer} moves"] = Line(what=f"{what}: moves per job", unit="moves")
        if answer != "regroup":
            lines[f"{answer} cost"] = Line(
                what=f"{what}: cost ÷ hourly regrouping",
                paper=cost if answer == "resubmit" else "–",
                differs="regrouping there is brute force with reordering, here exact packing",
            )
        else:
            lines["regroup usd"] = Line(what=f"{what}: cost", unit="USD/h")
    return Study(name=f"drift-{name}", title=f"Drift: {name}", figures=drift(template), lines=lines)


def sweep(seed: int) -> Figures:
    """The threshold of the one-job answer, under mixed drift."""
    jobs = jobs_of(seed)
    durations = drifting(None, jobs, seed)
    made: dict[str, float] = {}
    for threshold in THRESHOLDS:
        result = run(
            jobs,
            _options(Answer.REPLACE, durations, seed, threshold=threshold, headroom=HEADROOM),
        )
        found = _figures(str(threshold), result)
        made |= {key: found[key] for key in (f"{threshold} kept", f"{threshold} moves")}
        made[f"{threshold} usd"] = result.usd_per_h
    return made


def _stress(base: Durations, source: Source, seed: int, kind: str) -> Durations:
    made = base
    if kind in ("reward", "all"):
        made = SlowReward(made, share=0.1, factor=10.0, probability=0.02, spell=5, seed=seed)
    if kind in ("interference", "all"):
        made = Interference(made, factor=1.05, residents=source.residents)
    if kind in ("link", "all"):
        made = LinkJitter(made, cv=1.0)
    return made


STRESSES = ("reward", "interference", "link", "failures", "all")


def stress(kind: str, jobs: Sequence[SimJob], seed: int, margin: float) -> Options:
    drifts = drifting(None, jobs, seed)

    def durations(source: Source) -> Durations:
        base = drifts(source) if kind == "all" else Jittered(Fixed(), 0.02)
        return _stress(base, source, seed, kind)

    failures = None
    if kind in ("failures", "all"):
        failures = Failures(mtbf_s=48 * 3600.0, detect_s=5.0, restart_s=120.0)
    made = _options(
        Answer.REPLACE, durations, seed, threshold=THRESHOLD, headroom=HEADROOM, failures=failures
    )
    return replace(made, sharing=replace(made.sharing, margin=margin))


def stresses(seed: int) -> Figures:
    jobs = jobs_of(seed)
    made: dict[str, float] = {}
    for kind in STRESSES:
        for margin in (0.0, 0.1):
            result = run(jobs, stress(kind, jobs, seed, margin))
            made[f"{kind} {margin} kept"] = 100 * result.attainment
            made[f"{kind} {margin} usd"] = result.usd_per_h
    return made


_STRESS = {
    "reward": "a reward service 10 × slower in 2 % of iterations",
    "interference": "phases 5 % longer beside others",
    "link": "syncs of 4 s, coefficient of variation 1",
    "failures": "each job fails every 48 h",
    "all": "all of these and mixed drift",
}

STUDIES = (
    drift_study("increasing", Template.INCREASING, "1.11", "98.6"),
    drift_study("decreasing", Template.DECREASING, "1.10", "98.7"),
    drift_study("mixed", None, "1.08", "95.6"),
    Study(
        name="drift-threshold",
        title="Drift: part of a promise that may be used before one job is placed again (mixed)",
        figures=sweep,
        lines={
            key: line
            for threshold in THRESHOLDS
            for key, line in (
                (f"{threshold} kept", Line(what=f"{threshold}: iterations within SLO", unit="%")),
                (f"{threshold} moves", Line(what=f"{threshold}: moves per job", unit="moves")),
                (f"{threshold} usd", Line(what=f"{threshold}: cost", unit="USD/h")),
            )
        },
    ),
    Study(
        name="stress",
        title="Other disturbances, answered by placing one job again; margin 0 and 0.1",
        figures=stresses,
        lines={
            key: line
            for kind, what in _STRESS.items()
            for margin in (0.0, 0.1)
            for key, line in (
                (
                    f"{kind} {margin} kept",
                    Line(what=f"{what}, margin {margin:g}: iterations within SLO", unit="%"),
                ),
                (
                    f"{kind} {margin} usd",
                    Line(what=f"{what}, margin {margin:g}: cost", unit="USD/h"),
                ),
            )
        },
    ),
)
