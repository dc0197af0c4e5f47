"""Gavel+: shares by linear program, rounds that realise them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.ids import JobId
from rmux.job import JobSpec
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.mixes import Objective, best_mix, solve, wish_of
from rmux.place.sim.policies.gavel import Gavel
from rmux.place.sim.replay import Durations, replay
from rmux.place.sim.workload import profile_of
from rmux.place.sim.world import World

phase_s = st.floats(20, 600)


def job(name, times, slo=2.0, arrival_s=0.0, duration_s=36_000.0):
    return SimJob(
        id=JobId(name),
        arrival_s=arrival_s,
        duration_s=duration_s,
        spec=JobSpec(name=name, slo=slo),
        profile=profile_of(*times),
    )


def worth(wish, shares):
    return sum(share * value for share, value in zip(shares, wish.values, strict=True))


def speed(wish, shares):
    return sum(share * speed for share, speed in zip(shares, wish.speeds, strict=True))


@pytest.mark.parametrize("objective", Objective)
@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.tuples(phase_s, phase_s, st.floats(1, 2)), min_size=1, max_size=4))
def test_the_closed_form_is_worth_what_the_linear_program_finds(objective, times):
    wishes = [
        wish_of(job("a", (rollout_s, train_s), slo), World(), objective=objective)
        for rollout_s, train_s, slo in times
    ]
    for wish, shares in zip(wishes, solve(wishes, World()), strict=True):
        mix = best_mix(wish)
        assert sum(mix) == pytest.approx(1)
        assert worth(wish, mix) == pytest.approx(worth(wish, shares), rel=1e-6)
        assert speed(wish, mix) >= wish.least_speed * (1 - 1e-6)


def names(wish, shares):
    chosen = [(one.name, share) for one, share in zip(wish.bundles, shares, strict=True)]
    return {name: pytest.approx(share) for name, share in chosen if share > 0}


def test_most_iterations_per_dollar_gives_long_rollouts_more_rollout_nodes():
    heavy = wish_of(job("a", (500, 100)), World())
    assert names(heavy, best_mix(heavy)) == {"2:1": 1.0}
    balanced = wish_of(job("b", (100, 100)), World())
    assert names(balanced, best_mix(balanced)) == {"co-located": 1.0}


def test_a_tight_slo_is_kept_on_average_by_two_bundles():
    wish = wish_of(job("a", (100, 100), slo=1.0), World())
    mix = best_mix(wish)
    assert len(names(wish, mix)) == 2
    assert speed(wish, mix) == pytest.approx(1.0)


def test_in_full_pools_the_program_shares_nodes_and_falls_short_as_little_as_possible():
    world = World(rollout_nodes=1, train_nodes=1)
    wishes = [wish_of(job(name, (100, 100), slo=1.0), world) for name in "ab"]
    shares = solve(wishes, world)
    used = sum(
        share * bundle.train
        for wish, mix in zip(wishes, shares, strict=True)
        for share, bundle in zip(mix, wish.bundles, strict=True)
    )
    assert used == pytest.approx(1)
    speeds = [speed(wish, mix) for wish, mix in zip(wishes, shares, strict=True)]
    assert sum(speeds) == pytest.approx(1)


class Asked:
    """Counts when a policy was asked, and what jobs ran at."""

    def __init__(self, policy):
        self.policy, self.at_s, self.iteration_s, self.lost_s = policy, [], [], 0.0

    def step(self, now_s, **events):
        standing = self.policy.step(now_s, **events)
        self.at_s.append(now_s)
        self.iteration_s.append(dict(standing.iteration_s))
        self.lost_s += sum(standing.lost_s.values())
        return standing


def run(jobs, world=None, **options):
    asked = Asked(Gavel(world or World(), **options))
    return replay(jobs, asked, world=world or World(), durations=Durations.HOLD), asked


def test_jobs_on_one_bundle_need_no_rounds():
    done, asked = run([job("a", (100, 100))])
    assert asked.at_s == [0, 36_000]
    assert done.moves == 0


def test_rounds_come_to_the_shares_and_each_change_is_a_cold_start():
    one = job("a", (120, 80), slo=1.0, duration_s=360_000)
    done, asked = run([one])
    wish = wish_of(one, World())
    mix = best_mix(wish)
    assert all(at_s % 600 == 0 for at_s in asked.at_s)
    spent_s = dict.fromkeys(range(len(mix)), 0.0)
    for index, at_s in enumerate(asked.at_s[:-1]):
        took_s = asked.iteration_s[index][one.id]
        bundle = [bundle.iteration_s for bundle in wish.bundles].index(took_s)
        spent_s[bundle] += asked.at_s[index + 1] - at_s
    for index, share in enumerate(mix):
        assert spent_s[index] == pytest.approx(share * 360_000, abs=600)
    assert done.moves > 10
    assert done.lost_s == asked.lost_s >= done.moves * 60.4


def test_longer_rounds_start_cold_less_often():
    one = job("a", (100, 100), slo=1.0, duration_s=360_000)
    (short, _), (long, _) = run([one]), run([one], round_s=3600.0)
    assert 0 < long.moves < short.moves / 3


def test_jobs_take_turns_on_one_pair_of_nodes():
    world = World(rollout_nodes=1, train_nodes=1)
    done, asked = run([job(name, (100, 100), duration_s=6000) for name in "ab"], world)
    ran = [set(map(str, some)) for some in asked.iteration_s]
    assert {"a"} in ran
    assert {"b"} in ran
    assert all(len(some) <= 1 for some in ran)
    assert len(done.outcomes) == 2
