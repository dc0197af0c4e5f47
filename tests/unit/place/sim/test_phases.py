"""A trace phase by phase: what is promised, what comes out, and what is done about drift."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from rmux.cluster import Policy
from rmux.errors import InfeasibleError, InternalError
from rmux.ids import JobId
from rmux.place.sim import phases
from rmux.place.sim.durations import Drift, Drifting, Durations, Fixed, Interference, Template
from rmux.place.sim.faults import Failures
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.phases import Answer, Options, Result, Source
from rmux.place.sim.world import World


def job(lab, name: str, rollout_s: float, train_s: float, **changes: Any) -> SimJob:
    values: dict[str, Any] = {"arrival_s": 0.0, "slo": 2.0, "iterations": 50, **changes}
    profile = lab.profile(rollout_s, train_s, rollout_hardware="H20", train_hardware="H800")
    return SimJob(
        id=JobId(f"j-{name}"),
        arrival_s=values["arrival_s"],
        duration_s=values["iterations"] * (rollout_s + train_s),
        spec=lab.spec(name, slo=values["slo"]),
        profile=profile,
    )


def trace(lab, count: int, *, seed: int = 1) -> list[SimJob]:
    rng = random.Random(seed)
    return [
        job(
            lab,
            f"{number:03}",
            rng.uniform(50, 500),
            rng.uniform(50, 500),
            arrival_s=number * 2500.0,
            slo=rng.uniform(1, 2),
            iterations=rng.randint(20, 120),
        )
        for number in range(count)
    ]


def growing(source: Source) -> Durations:
    drift = Drift(template=Template.INCREASING, scale=1.5)
    return Drifting(Fixed(), dict.fromkeys(source.iterations, drift), source.iterations)


def run(jobs: list[SimJob], **options: Any) -> Result:
    return phases.run(jobs, Options(**options))


def test_a_job_alone_runs_its_iterations_at_its_own_pace_and_pays_for_its_nodes(lab):
    result = run([job(lab, "a", 100, 80, slo=1.0)])
    (outcome,) = result.jobs
    assert (outcome.iterations, outcome.slowdown) == (50, 1.0)
    assert result.span_s == 50 * 180
    assert result.usd_per_h == pytest.approx(8 * (1.85 + 5.28))
    assert result.rollout_use == pytest.approx(100 / 180)
    assert result.train_use == pytest.approx(80 / 180)
    assert result.attainment == result.attainment_relative == 1.0


def test_two_jobs_that_fill_each_others_bubbles_share_their_nodes(lab):
    result = run([job(lab, "a", 100, 100), job(lab, "b", 95, 95)])
    assert result.usd_per_h == pytest.approx(8 * (1.85 + 5.28), rel=0.01)
    assert result.rollout_use > 0.9
    assert {one.job_id: round(one.slowdown, 2) for one in result.jobs} == {"j-a": 1.0, "j-b": 1.05}


def test_without_drift_nothing_moves_and_all_but_the_rounds_of_a_join_keep_their_promise(lab):
    jobs = trace(lab, 60)
    for answer in (Answer.STATIC, Answer.REPLACE):
        result = run(jobs, answer=answer)
        assert result.moves == 0
        assert result.attainment > 0.998
        assert result.iterations == sum(one.iterations for one in result.jobs)
    assert len(result.jobs) == 60


def test_a_job_that_joins_nodes_of_its_own_in_a_group_begins_at_once(lab):
    long = job(lab, "a", 400, 100, iterations=100, slo=1.0)
    other = job(lab, "b", 380, 60, iterations=20, arrival_s=1000.0, slo=1.2)
    result = run([long, other])
    first = result.jobs[0]
    assert first.job_id == "j-b"
    assert first.ended_s < 1000 + 500 + 20 * 500


def test_drift_breaks_promises_and_each_answer_restores_some(lab):
    jobs = trace(lab, 60)
    options: dict[str, Any] = {"durations": growing, "regroup_s": 4 * 3600.0}
    by_answer = {answer: run(jobs, answer=answer, **options) for answer in Answer}
    attained = {answer: result.attainment for answer, result in by_answer.items()}
    assert attained[Answer.STATIC] < attained[Answer.RESUBMIT] < attained[Answer.REPLACE]
    assert attained[Answer.STATIC] < 0.8
    assert attained[Answer.REPLACE] > 0.9
    assert by_answer[Answer.STATIC].moves == 0
    assert by_answer[Answer.REGROUP].moves > by_answer[Answer.REPLACE].moves > 0
    for result in by_answer.values():
        assert sum(one.moves for one in result.jobs) == result.moves
        assert 197 * result.moves <= result.moved_s <= 419 * result.moves
    assert by_answer[Answer.STATIC].moved_s == 0


def test_acting_before_the_promise_breaks_breaks_fewer(lab):
    jobs = trace(lab, 40)
    late, early = (
        run(jobs, answer=Answer.REPLACE, durations=growing, threshold=threshold)
        for threshold in (1.05, 0.97)
    )
    assert early.violations < late.violations


def test_both_readings_of_the_promise_are_told(lab):
    """The long job shrinks: what it shares its nodes with stays within what was promised to it, but
    not within the SLO x what it would take alone by then."""
    long = job(lab, "a", 200, 200, slo=1.2, iterations=80)
    mate = job(lab, "b", 150, 190, slo=1.2, iterations=80)

    def shrinking(source: Source) -> Durations:
        drift = Drift(template=Template.DECREASING, scale=1.5, amplitude=1.0)
        return Drifting(Fixed(), {long.id: drift}, source.iterations)

    result = run([long, mate], durations=shrinking)
    assert result.attainment == 1.0
    assert result.attainment_relative < 0.8


def test_the_group_moves_are_charged_with_the_time_they_take(lab):
    jobs = trace(lab, 40)
    cheap, dear = (
        run(jobs, answer=Answer.REPLACE, durations=growing, restart_s=(seconds, seconds))
        for seconds in (1.0, 3000.0)
    )
    assert dear.moved_s > 100 * cheap.moved_s
    assert sum(one.ended_s for one in dear.jobs) > sum(one.ended_s for one in cheap.jobs)


def test_failures_cost_iterations_and_time_and_every_job_still_ends(lab):
    jobs = trace(lab, 20)
    well = run(jobs)
    failures = Failures(mtbf_s=20_000.0, detect_s=45.0, restart_s=300.0)
    ill = run(jobs, failures=failures)
    assert ill.failures == sum(one.lost_iterations for one in ill.jobs) > 5
    assert [one.iterations for one in sorted(ill.jobs, key=lambda one: one.job_id)] == [
        one.iterations for one in sorted(well.jobs, key=lambda one: one.job_id)
    ]
    assert sum(one.ended_s for one in ill.jobs) > sum(one.ended_s for one in well.jobs)


def test_interference_follows_who_is_resident(lab):
    def slowed(source: Source) -> Durations:
        return Interference(Fixed(), 1.1, source.residents)

    alone = run([job(lab, "a", 100, 100)], durations=slowed)
    assert alone.jobs[0].slowdown == 1.0
    assert alone.span_s == 50 * 200
    both = run([job(lab, "a", 100, 100), job(lab, "b", 95, 95)], durations=slowed)
    assert both.span_s > 50 * 200 * 1.05


def test_jobs_wait_for_a_fixed_pool_and_one_that_can_never_fit_is_refused(lab):
    small = World(rollout_nodes=1, train_nodes=1)
    jobs = [job(lab, name, 100, 50, slo=1.0) for name in ("a", "b")]
    result = run(jobs, world=small)
    assert [one.started_s for one in result.jobs] == [0.0, 50 * 150]
    large = replace(jobs[0], spec=replace(jobs[0].spec, rollout=lab.spec("x", rollout=3).rollout))
    with pytest.raises(InfeasibleError, match="job a never fits"):
        run([large], world=small)


def test_the_same_seed_gives_the_same_trace(lab):
    jobs = trace(lab, 15)
    failures = Failures(mtbf_s=20_000.0, detect_s=45.0, restart_s=300.0)
    runs = [run(jobs, seed=seed, failures=failures) for seed in (1, 1, 2)]
    assert runs[0].jobs == runs[1].jobs != runs[2].jobs


def test_the_size_of_groups_and_the_rule_are_those_of_the_policy(lab):
    jobs = [job(lab, name, 100, 20) for name in "abc"]
    lone = run(jobs, sharing=Policy(max_members=1))
    assert lone.cost_usd == pytest.approx(3 * lone.span_s / 3600 * 8 * (1.85 + 5.28))
    assert run(jobs).cost_usd < lone.cost_usd


def test_a_trace_without_jobs_is_refused():
    with pytest.raises(InternalError, match="needs a job"):
        phases.run([], Options())
