"""The best packing at every event, against brute force and against the policies."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rmux.place.packing import Columns
from rmux.place.sim.bound import Bounder
from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.replay import replay
from rmux.place.sim.study import Study, run
from rmux.place.sim.trace import load
from rmux.place.sim.workload import Drawing, Workload
from rmux.place.sim.world import World

PHILLY = Path(__file__).parents[3] / "data" / "traces" / "philly_300jobs.csv"


def partitions(items):
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for index, part in enumerate(parts):
            yield [*parts[:index], [first, *part], *parts[index + 1 :]]


def cheapest(jobs):
    """USD/h of the cheapest division of jobs of one node each, every division tried."""

    def nodes(group, limit_s):
        """Fewest rollout nodes that hold the rollouts, every assignment tried."""
        return min(
            len(part)
            for part in partitions([job.profile.rollout.worst_s for job in group])
            if all(sum(node) <= limit_s for node in part)
        )

    def usd(group):
        limit_s = min(job.spec.slo * job.solo_s for job in group)
        longest_s = max(job.solo_s for job in group)
        train_s = sum(job.profile.train.worst_s for job in group)
        if max(longest_s, train_s) > limit_s:
            return float("inf")
        return 42.24 + 14.80 * nodes(group, limit_s)

    return min(sum(map(usd, parts)) for parts in partitions(list(jobs)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_packing_is_that_of_brute_force(seed):
    jobs = Workload(load(PHILLY, window="3:9"), Drawing(seed=seed))
    setting = Setting(world=World())
    done = replay(jobs, make("rollmux-static", setting), world=World())
    found = Bounder(jobs, setting).of(done)
    instants = sorted({t for one in done.outcomes for t in (one.started_s, one.ended_s)})
    usd = 0.0
    for since_s, until_s in pairwise(instants):
        here = [j for j in jobs if j.arrival_s <= since_s < j.arrival_s + j.duration_s]
        usd += cheapest(here) * (until_s - since_s) / 3600 if here else 0.0
    assert found.proven
    assert found.opt_usd_per_h == pytest.approx(usd / (done.span_s / 3600))
    assert found.lp_usd_per_h <= found.opt_usd_per_h * (1 + 1e-9)


def test_no_policy_that_keeps_its_promises_is_cheaper_and_all_share_one_bound():
    results = run(
        load(PHILLY, window="0:80"),
        ["rollmux", "rollmux-static", "rollmux-paper"],
        Study(drawing=Drawing(seed=4)),
    )
    assert len({one.bound.opt_usd_per_h for one in results}) == 1
    for one in results:
        bound, cost = one.bound, one.metrics.cost_usd_per_h
        assert one.metrics.slo_attainment_absolute == 1
        assert bound.lp_usd_per_h <= bound.opt_usd_per_h <= cost


def test_what_is_not_found_in_time_is_not_told_and_a_bound_is():
    jobs = Workload(load(PHILLY, window="0:20"), Drawing())
    setting = Setting(world=World())
    done = replay(jobs, make("rollmux-static", setting), world=World())
    found = Bounder(jobs, setting, most_columns=5).of(done)
    assert (found.opt_usd_per_h, found.proven) == (None, False)
    assert 0 < found.lp_usd_per_h < done.usd_per_h


def test_sets_of_jobs_that_come_back_are_solved_once(monkeypatch):
    solved = []
    whole = Columns.solve
    monkeypatch.setattr(
        Columns, "solve", lambda self, **options: solved.append(1) or whole(self, **options)
    )
    run(load(PHILLY, window="0:20"), ["rollmux-static"], Study())
    once = len(solved)
    run(load(PHILLY, window="0:20"), ["rollmux-static", "rollmux-paper"], Study())
    assert len(solved) == 2 * once


def test_time_that_runs_out_leaves_a_bound_by_volume():
    jobs = Workload(load(PHILLY, window="0:30"), Drawing())
    setting = Setting(world=World())
    done = replay(jobs, make("rollmux-static", setting), world=World())
    exact = Bounder(jobs, setting).of(done)
    short = Bounder(jobs, setting, budget_s=0.0).of(done)
    assert (short.opt_usd_per_h, short.proven) == (None, False)
    assert 0 < short.lp_usd_per_h <= exact.lp_usd_per_h
