"""Figures of a replay, on one small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmux.ids import JobId
from rmux.place.sim.metrics import jain, measure, spread
from rmux.place.sim.replay import Outcome, Replay


def outcome(name, arrival_s, started_s, ended_s, duration_s, **changes):
    values = {
        "tenant": "",
        "usd": 10.0,
        "tightness": 0.9,
        "tightness_expected": 1.1,
        "nodes": (1, 1),
        **changes,
    }
    return Outcome(
        job_id=JobId(name),
        arrival_s=arrival_s,
        started_s=started_s,
        ended_s=ended_s,
        duration_s=duration_s,
        **values,
    )


REPLAY = Replay(
    outcomes=(
        outcome("a", 0, 0, 100, 100, tenant="blue"),
        outcome("b", 0, 50, 250, 125, tenant="blue", usd=5.0, tightness=1.2, nodes=(2, 1)),
        outcome("c", 100, 400, 7200, 1775, usd=1.0, tightness_expected=1.0),
    ),
    span_s=7200,
    cost_usd=16.0,
    move_usd=1.5,
    lost_s=30,
    moves=1,
    placed={"isolated group": 2, "direct packing": 1},
    rollout_held=400,
    rollout_busy=100,
    train_held=0,
    train_busy=0,
    rollout_peak=3,
    train_peak=2,
    elapsed_s=0.01,
)


def test_money_is_per_hour_of_the_span_and_of_each_tenant():
    found = measure(REPLAY)
    assert (found.cost_usd, found.cost_usd_per_h, found.move_usd) == (16, 8, 1.5)
    assert found.cost_by_tenant == {"": 1, "blue": 15}
    assert sum(found.cost_by_tenant.values()) == found.cost_usd


def test_a_job_keeps_its_slo_when_no_iteration_was_planned_beyond_it():
    found = measure(REPLAY)
    assert found.slo_attainment_absolute == pytest.approx(2 / 3)
    assert found.slo_attainment_relative == pytest.approx(1 / 3)
    exact = replace(REPLAY, outcomes=(outcome("a", 0, 0, 1, 1, tightness=1 + 1e-12),))
    assert measure(exact).slo_attainment_absolute == 1


def test_waiting_completion_and_fairness():
    found = measure(REPLAY)
    assert (found.wait_s.mean, found.wait_s.p50, found.wait_s.p95) == (350 / 3, 50, 300)
    assert (found.jct_s.p50, found.jct_s.p95) == (250, 7100)
    assert found.finish_time_fairness.max == 4
    assert found.finish_time_fairness.jain == pytest.approx(49 / (3 * 21))


def test_gpus_at_most_and_the_idle_part_of_those_held():
    found = measure(REPLAY)
    assert (found.rollout_peak_gpus, found.train_peak_gpus) == (24, 16)
    assert (found.rollout_bubbles, found.train_bubbles) == (0.75, 0)
    assert found.nodes == {"1+1": 2, "2+1": 1}


def test_a_percentile_is_a_value_that_occurs():
    assert spread(range(1, 101)) == spread([*range(100, 0, -1)])
    assert (spread(range(1, 101)).p50, spread(range(1, 101)).p95) == (50, 95)
    assert spread([7]).p95 == 7


def test_jains_index_is_one_for_equals_and_one_nth_for_one_that_has_all():
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
