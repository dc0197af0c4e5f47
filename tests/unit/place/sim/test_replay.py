"""Arrivals, departures and what a policy says in between, integrated."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.errors import InfeasibleError, InternalError
from rmux.ids import JobId
from rmux.job import JobSpec
from rmux.place.sim.bound import Bounder
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.policies.catalogue import POLICIES, Setting, make
from rmux.place.sim.replay import Durations, replay
from rmux.place.sim.trace import load
from rmux.place.sim.workload import Drawing, Workload, profile_of
from rmux.place.sim.world import World

PHILLY = Path(__file__).parents[3] / "data" / "traces" / "philly_300jobs.csv"


def job(name, arrival_s, duration_s, times=(60.0, 40.0), slo=2.0, **spec):
    return SimJob(
        id=JobId(name),
        arrival_s=arrival_s,
        duration_s=duration_s,
        spec=JobSpec(name=name, slo=slo, **spec),
        profile=profile_of(*times),
    )


@dataclass
class Shared:
    """All jobs share one pair of nodes for 36 USD/h, each at `stretch` x its solo time."""

    stretch: float = 1.0
    lost_s: dict = field(default_factory=dict)
    wakes_s: list = field(default_factory=list)
    asked_s: list = field(default_factory=list)
    jobs: dict = field(default_factory=dict)

    def step(self, now_s, *, arrived, departed):
        self.asked_s.append(now_s)
        for job_id in departed:
            del self.jobs[job_id]
        self.jobs.update((one.id, one) for one in arrived)
        count = len(self.jobs)
        lost_s = {j: s for (j, at), s in self.lost_s.items() if at == now_s}
        return Standing(
            usd_per_h=36.0 if count else 0.0,
            iteration_s={j: one.solo_s * self.stretch for j, one in self.jobs.items()},
            usd_per_h_by_job=dict.fromkeys(self.jobs, 36.0 / max(1, count)),
            rollout_devices=bool(count),
            train_devices=bool(count),
            rollout_busy=0.5 * bool(count),
            moves=len(lost_s),
            lost_s=lost_s,
            placed={one.id: "isolated group" for one in arrived},
            next_s=next((at for at in self.wakes_s if at > now_s), None),
        )


def run(jobs, policy=None, **options):
    return replay(jobs, policy or Shared(), world=World(), **options)


def ends(done):
    return {str(one.job_id): one.ended_s for one in done.outcomes}


def test_under_hold_a_job_leaves_after_its_duration_however_slow_it_runs():
    done = run([job("a", 0, 3600), job("b", 1800, 3600)], Shared(stretch=1.5))
    assert ends(done) == {"a": 3600, "b": 5400}
    assert done.span_s == 5400
    assert done.cost_usd == pytest.approx(36 * 1.5)
    assert done.usd_per_h == pytest.approx(36)
    assert [one.usd for one in done.outcomes] == pytest.approx([27, 27])


def test_under_work_sharing_stretches_a_job_by_iteration_over_solo():
    done = run([job("a", 0, 3600)], Shared(stretch=1.5), durations=Durations.WORK)
    assert ends(done) == {"a": pytest.approx(5400)}


@dataclass
class Halved(Shared):
    """Twice as slow from 1000 s on."""

    def step(self, now_s, *, arrived, departed):
        self.stretch = 2.0 if now_s >= 1000 else 1.0
        return super().step(now_s, arrived=arrived, departed=departed)


def test_work_done_counts_when_the_pace_changes():
    done = run([job("a", 0, 3000)], Halved(wakes_s=[1000]), durations=Durations.WORK)
    assert ends(done) == {"a": pytest.approx(1000 + 2000 * 2)}


def test_a_move_delays_a_job_under_work():
    policy = Shared(lost_s={("a", 500.0): 100.0}, wakes_s=[500.0])
    done = run([job("a", 0, 3600)], policy, durations=Durations.WORK)
    assert ends(done) == {"a": pytest.approx(3700)}
    assert (done.moves, done.lost_s, done.move_usd) == (1, 100, 0)


def test_a_move_is_charged_under_hold_at_the_price_of_nodes_of_its_own():
    policy = Shared(lost_s={("a", 500.0): 100.0}, wakes_s=[500.0])
    done = run([job("a", 0, 3600)], policy)
    assert ends(done) == {"a": 3600}
    assert done.move_usd == pytest.approx(57.04 * 100 / 3600)
    assert done.cost_usd == pytest.approx(36 + done.move_usd)
    assert done.outcomes[0].usd == pytest.approx(done.cost_usd)


def test_events_of_one_instant_are_one_step():
    policy = Shared()
    run([job("a", 0, 100), job("b", 100, 100), job("c", 100, 50)], policy)
    assert policy.asked_s == [0, 100, 150, 200]


def test_a_longest_iteration_beyond_the_promise_is_seen():
    done = run([job("a", 0, 100, slo=1.2), job("b", 0, 100, slo=1.6)], Shared(stretch=1.5))
    tight = {str(one.job_id): one.tightness for one in done.outcomes}
    assert tight == {"a": pytest.approx(1.25), "b": pytest.approx(0.9375)}


def test_each_point_holds_until_the_next_and_they_add_up_to_the_bill():
    points = []
    jobs = Workload(load(PHILLY, window="0:60"), Drawing(seed=1))
    done = run(jobs, make("rollmux-static", Setting(world=World())), watch=points.append)
    usd = sum(left.usd_per_h * (right.at_s - left.at_s) / 3600 for left, right in pairwise(points))
    assert done.cost_usd == pytest.approx(usd)
    assert points[-1].usd_per_h == points[-1].running == 0
    assert done.rollout_peak == max(point.rollout_devices for point in points)


class Never:
    def step(self, now_s, *, arrived, departed):
        return Standing(usd_per_h=0, iteration_s={}, usd_per_h_by_job={})


class Backwards:
    def step(self, now_s, *, arrived, departed):
        return Standing(usd_per_h=0, iteration_s={}, usd_per_h_by_job={}, next_s=now_s)


def test_a_job_that_waits_for_ever_ends_the_replay_with_its_name():
    with pytest.raises(InfeasibleError, match="job a waits"):
        run([job("a", 0, 100)], Never())


def test_a_policy_that_turns_the_clock_back_is_told():
    with pytest.raises(InternalError, match="wants to be woken"):
        run([job("a", 0, 100)], Backwards())


_JOBS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 9), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=20, deadline=None)
@given(rows=_JOBS, durations=st.sampled_from(list(Durations)))
def test_whatever_comes_every_job_ends_once_and_the_shares_are_the_bill(name, rows, durations):
    jobs = sorted(
        (
            job(str(n), 100.0 * at, 100.0 * took, (10.0 * r, 10.0 * t))
            for n, (at, took, r, t) in enumerate(rows)
        ),
        key=lambda one: one.arrival_s,
    )
    done = run(jobs, make(name, Setting(world=World())), durations=durations)
    assert sorted(one.job_id for one in done.outcomes) == sorted(one.id for one in jobs)
    assert sum(one.usd for one in done.outcomes) == pytest.approx(done.cost_usd)
    for one in done.outcomes:
        assert one.arrival_s <= one.started_s < one.ended_s
        assert one.jct_s >= one.duration_s * (1 - 1e-6) or durations is Durations.WORK
    if name not in ("colocate",):  # its rollouts are on train nodes
        assert done.rollout_busy <= done.rollout_held * (1 + 1e-9)
    assert done.train_busy <= done.train_held * (1 + 1e-9)


@pytest.mark.parametrize("name", ["rollmux-static", "rollmux-paper"])
def test_rmux_keeps_every_promise_on_the_philly_window(name):
    jobs = Workload(load(PHILLY), Drawing(seed=2))
    done = run(jobs, make(name, Setting(world=World())))
    assert len(done.outcomes) == 300
    assert max(one.tightness for one in done.outcomes) <= 1 + 1e-9
    assert 0.6 * 412 < done.usd_per_h < 0.75 * 412
    assert sum(done.placed.values()) == 300


def test_moves_that_pay_back_make_rmux_nearly_as_cheap_as_the_best_packing():
    jobs = Workload(load(PHILLY, window="0:100"), Drawing(seed=2))
    setting = Setting(world=World())
    static, moving = (run(jobs, make(n, setting)) for n in ("rollmux-static", "rollmux"))
    best = Bounder(jobs, setting).of(moving).opt_usd_per_h
    assert moving.usd_per_h <= 1.05 * best < static.usd_per_h
    assert moving.moves > 0
    assert moving.move_usd > 0
    assert max(one.tightness for one in moving.outcomes) <= 1 + 1e-9


def test_solo_costs_what_nodes_of_ones_own_cost():
    jobs = Workload(load(PHILLY, window="0:50"), Drawing())
    done = run(jobs, make("solo", Setting(world=World())))
    hours = sum(one.duration_s for one in jobs) / 3600
    assert done.cost_usd == pytest.approx(57.04 * hours)


def test_jobs_wait_for_fixed_pools_and_then_run():
    world = World(rollout_nodes=1, train_nodes=1)
    policy = make("rollmux-static", Setting(world=world))
    jobs = [job("a", 0, 1000, slo=1.0), job("b", 10, 1000, slo=1.0), job("c", 20, 10, slo=1.0)]
    done = replay(jobs, policy, world=world)
    assert {str(one.job_id): one.started_s for one in done.outcomes} == {
        "a": 0,
        "b": 1000,
        "c": 2000,
    }
    assert done.rollout_peak == 1


def test_among_waiting_jobs_the_more_urgent_goes_first():
    world = World(rollout_nodes=1, train_nodes=1)
    policy = make("rollmux-static", Setting(world=world))
    jobs = [
        job("a", 0, 1000, slo=1.0),
        job("b", 10, 1000, slo=1.0),
        job("c", 20, 1000, slo=1.0, priority=1),
    ]
    done = replay(jobs, policy, world=world)
    assert [str(one.job_id) for one in done.outcomes] == ["a", "c", "b"]


def test_a_group_takes_no_more_members_than_it_may():
    jobs = [job(str(n), 0, 1000, (100.0, 5.0), slo=9.0) for n in range(6)]
    costs = [
        replay(
            jobs, make("rollmux-static", Setting(world=World(), max_members=most)), world=World()
        ).usd_per_h
        for most in (0, 3, 1)
    ]
    assert costs == sorted(costs)
    assert costs[2] == pytest.approx(6 * 57.04)
