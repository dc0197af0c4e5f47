"""Where simulated phase times come from."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmux.errors import InternalError
from rmux.ids import JobId
from rmux.job import Phase
from rmux.place.sim.durations import (
    MIXED,
    Drift,
    Drifting,
    Durations,
    Fixed,
    HeavyTailed,
    Interference,
    Jittered,
    LinkJitter,
    PerJob,
    SlowReward,
    Template,
    generator,
)

JOB = JobId("j-a")


def sample(source: Durations, member, phase: Phase, count: int = 4000) -> list[float]:
    rng = generator(1, member.job_id, phase)
    return [source.of(member, phase, iteration, rng) for iteration in range(count)]


@pytest.fixture
def member(lab):
    return lab.member("a", 10, 5, sync_s=2.0, init_s=3.0)


def test_fixed_times_are_the_worst_cases_of_the_profile(member):
    times = {phase: Fixed().of(member, phase, 0, random.Random()) for phase in Phase}
    assert times == {Phase.INIT: 3.0, Phase.ROLLOUT: 10, Phase.TRAIN: 5, Phase.SYNC: 2.0}


def test_jitter_keeps_the_mean_and_has_the_spread_asked_for(member):
    times = sample(Jittered(Fixed(), 0.3), member, Phase.ROLLOUT)
    assert statistics.fmean(times) == pytest.approx(10, rel=0.02)
    assert statistics.stdev(times) / 10 == pytest.approx(0.3, rel=0.05)
    assert set(sample(Jittered(Fixed(), 0.3), member, Phase.SYNC, 20)) == {2.0}


def test_link_jitter_moves_the_sync_only(member):
    source = LinkJitter(Fixed(), 0.5)
    assert statistics.stdev(sample(source, member, Phase.SYNC)) == pytest.approx(1.0, rel=0.1)
    assert set(sample(source, member, Phase.TRAIN, 20)) == {5}


def test_a_jobs_phase_has_a_generator_of_its_own():
    first = [generator(1, JOB, phase).random() for phase in Phase]
    assert len(set(first)) == len(Phase)
    assert first == [generator(1, JOB, phase).random() for phase in Phase]
    assert generator(2, JOB, Phase.ROLLOUT).random() not in first


@given(tokens=st.lists(st.integers(0, 200), min_size=1, max_size=30), count=st.integers(1, 40))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_batch_of_lengths_never_exceeds_the_worst_case(member, tokens, count):
    source = HeavyTailed(Fixed(), tokens, 100, count)
    for iteration in range(3):
        rng = random.Random()
        shares = source.shares(member, iteration)
        assert len(shares) == count
        rollout = source.of(member, Phase.ROLLOUT, iteration, rng)
        train = source.of(member, Phase.TRAIN, iteration, rng)
        assert rollout == pytest.approx(10 * max(shares))
        assert train == pytest.approx(5 * statistics.fmean(shares))
        assert rollout <= 10
        assert train <= 5 + 1e-9


def test_a_rollout_lasts_as_long_as_its_longest_response(member):
    source = HeavyTailed(Fixed(), [10] * 99 + [90], 100, 64)
    times = sample(source, member, Phase.ROLLOUT, 200)
    assert set(times) == {1.0, 9.0}
    assert times.count(9.0) / 200 == pytest.approx(1 - 0.99**64, abs=0.1)


def test_lengths_of_an_iteration_do_not_depend_on_what_was_asked_before(member):
    one, other = (HeavyTailed(Fixed(), range(1, 100), 100, 16, 7) for _ in range(2))
    assert list(one.shares(member, 5)) != list(one.shares(member, 6))
    assert list(one.shares(member, 5)) == list(other.shares(member, 5))


def test_a_batch_without_lengths_is_refused():
    with pytest.raises(InternalError, match="lengths, a limit and a size"):
        HeavyTailed(Fixed(), [], 100)


def test_drift_changes_times_over_the_life_of_the_job(member):
    drifts = {JOB: Drift(template=Template.INCREASING, scale=1.0, amplitude=0.3)}
    source = Drifting(Fixed(), drifts, {JOB: 101})
    times = sample(source, member, Phase.ROLLOUT, 101)
    assert times[0] == 10
    assert times[50] == pytest.approx(11.5)
    assert times[100] == pytest.approx(13.0)
    assert source.of(member, Phase.SYNC, 100, random.Random()) == 2.0


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
def test_decreasing_drift_mirrors_increasing(scale):
    up = Drift(template=Template.INCREASING, scale=scale)
    down = Drift(template=Template.DECREASING, scale=scale)
    assert up.factor(1.0) == pytest.approx(1 + 0.3 * scale)
    for life in (0.0, 0.3, 1.0, 2.0):
        assert up.factor(life) * down.factor(life) == pytest.approx(1.0)
        assert Drift().factor(life) == 1.0
    assert {(one.template, one.scale) for one in MIXED} >= {
        (Template.INCREASING, scale),
        (Template.DECREASING, scale),
    }


def test_a_slow_reward_service_lengthens_the_rollouts_of_its_spells(member):
    source = SlowReward(Fixed(), share=0.2, factor=3.0, probability=0.25, spell=4)
    times = sample(source, member, Phase.ROLLOUT, 4000)
    assert set(times) == {10, 14.0}
    assert times.count(14.0) / 4000 == pytest.approx(0.25, abs=0.03)
    assert all(len(set(times[at : at + 4])) == 1 for at in range(0, 4000, 4))
    assert set(sample(source, member, Phase.TRAIN, 20)) == {5}


def test_interference_holds_while_another_job_is_resident(member):
    residents = {JOB: 2}
    source = Interference(Fixed(), 1.1, residents)
    assert source.of(member, Phase.TRAIN, 0, random.Random()) == pytest.approx(5.5)
    assert source.of(member, Phase.SYNC, 0, random.Random()) == 2.0
    residents[JOB] = 1
    assert source.of(member, Phase.TRAIN, 1, random.Random()) == 5


def test_some_jobs_may_have_a_source_of_their_own(lab, member):
    source = PerJob(Fixed(), {JOB: Jittered(Fixed(), 0.2)})
    other = lab.member("b", 10, 5)
    assert len(set(sample(source, member, Phase.TRAIN, 20))) == 20
    assert set(sample(source, other, Phase.TRAIN, 20)) == {5}
