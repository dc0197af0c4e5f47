"""Throughput per dollar of the job sets of Figure 10, by hand."""

from __future__ import annotations

import pytest

from rmux.place.sim.bundles import FIGURE_10, colocate, gavel, rmux, solo
from rmux.place.sim.world import World

WORLD = World()


def per_usd(name, kind, **options):
    bench = FIGURE_10[name]
    subject = bench if kind is rmux else bench.jobs
    return kind(subject, WORLD).per_usd(solo(bench.jobs, WORLD), **options)


def test_two_jobs_on_one_pair_cost_half_and_take_their_rollouts():
    found = rmux(FIGURE_10["temporal"], WORLD)
    assert found.usd_per_h == pytest.approx(57.04)
    assert found.iteration_s == {"A1": 270, "A2": 270}
    assert per_usd("temporal", rmux) == pytest.approx(2 * 239 / 270)


def test_short_jobs_run_twice_beside_a_long_one():
    found = rmux(FIGURE_10["train"], WORLD)
    assert found.usd_per_h == pytest.approx(24 * 1.85 + 8 * 5.28)
    assert found.iteration_s == {"D1": 441, "D2": 441, "E": 882}
    assert per_usd("train", rmux) == pytest.approx((2 * 437 / 441 + 1) / 3 * 171.12 / 86.64)


def test_two_small_jobs_run_on_the_nodes_of_a_large_one():
    found = rmux(FIGURE_10["spatial"], WORLD)
    assert found.usd_per_h == pytest.approx(2 * 57.04)
    assert set(found.iteration_s.values()) == {628}


def test_co_located_jobs_gain_by_price_and_lose_by_bandwidth():
    expected = 239 / (135 * 4.0 / 3.35 + 104) * 57.04 / 42.24
    assert per_usd("temporal", colocate) == pytest.approx(expected)


def test_gavel_gives_long_rollouts_a_second_node_and_is_never_below_co_location():
    assert gavel(FIGURE_10["train"].jobs, WORLD).iteration_s["E"] == 757 / 2 + 125
    for name in FIGURE_10:
        assert per_usd(name, gavel) >= per_usd(name, colocate) * (1 - 1e-9)
        assert per_usd(name, rmux) > per_usd(name, gavel)
        assert per_usd(name, solo) == pytest.approx(1)


def test_measured_overhead_lengthens_shared_iterations():
    bench = FIGURE_10["temporal"]
    alone = solo(bench.jobs, WORLD)
    measured = rmux(bench, WORLD, overhead=0.016).per_usd(alone)
    assert measured == pytest.approx(per_usd("temporal", rmux) / 1.016)


def test_a_sync_lengthens_the_loop_of_its_own_job_alone():
    syncs_s = {"A1": 0.9, "A2": 0.9}
    assert rmux(FIGURE_10["temporal"], WORLD, sync_s=syncs_s).iteration_s["A1"] == 270
    assert rmux(FIGURE_10["temporal"], WORLD, sync_s={"A1": 40.0}).iteration_s["A2"] == 279
    assert rmux(FIGURE_10["spatial"], WORLD, sync_s={"C": 12.3}).iteration_s["C"] == 640.3


def test_weights_say_what_a_jobs_iteration_is_worth():
    only_large = per_usd("spatial", rmux, weights={"C": 1, "D1": 0, "D2": 0})
    assert only_large == pytest.approx(2.0)
