"""Phase times that leave the plan: who has to go, and which promise is meant."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rmux.errors import UserError
from rmux.events import EventType, PhaseEvent
from rmux.ids import GroupId, JobId
from rmux.job import Phase
from rmux.place.drift import (
    SAFETY,
    Seen,
    Tracker,
    admitted_again,
    at_risk,
    broken,
    growth,
    readings,
    replanned,
)
from rmux.place.period import CLOSE, period

A, B, C = JobId("j-a"), JobId("j-b"), JobId("j-c")


@pytest.fixture
def pair(lab):
    """a (50, 50) and b (40, 40) on one pair of nodes, 100 s a round; a accepts 110 s, b 160 s."""
    group = lab.group(lab.member("a", 50, 50, slo=1.1), lab.member("b", 40, 40))
    return lab.state(group)


def tracked(*seconds, quantile=0.95, **options):
    tracker = Tracker(quantile=quantile, **options)
    for value in seconds:
        tracker.note(A, Phase.ROLLOUT, value)
    return tracker


def ended(iteration, run_s, *, phase=Phase.ROLLOUT, attempt=1, kind=EventType.PHASE_END):
    return PhaseEvent(
        type=kind,
        at=datetime(2026, 1, 1, tzinfo=UTC),
        at_s=float(iteration),
        source="n",
        source_n=iteration,
        group_id=GroupId("g-1"),
        job_id=A,
        iteration=iteration,
        phase=phase,
        data={"run_s": run_s, "attempt": attempt},
    )


def test_a_quantile_is_a_value_that_was_seen():
    assert tracked(*range(1, 101), window=100).quantile_s(A, Phase.ROLLOUT) == 95
    assert tracked(*range(1, 11), quantile=0.5).quantile_s(A, Phase.ROLLOUT) == 5


def test_only_the_last_of_a_window_count():
    assert tracked(*[100] * 20, *[7] * 10, window=10).seen(A) == Seen(rollout_s=7)


def test_nothing_is_said_before_enough_was_seen():
    assert tracked(1, 2, 3, 4, least=5).seen(A) == Seen()
    assert tracked(1, 2, 3, 4, 5, least=5).seen(A) == Seen(rollout_s=5)


def test_a_job_that_left_is_forgotten():
    tracker = tracked(*[1] * 9)
    tracker.forget(A)
    assert tracker.observed() == {}


def test_phases_that_are_not_planned_every_round_are_not_tracked():
    tracker = Tracker(quantile=0.9, least=1)
    tracker.note(A, Phase.INIT, 3)
    assert tracker.observed() == {}


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0])
def test_a_quantile_that_is_none_is_refused(quantile):
    with pytest.raises(UserError, match="quantile"):
        Tracker(quantile=quantile)


def test_a_window_too_small_for_what_must_be_seen_is_refused():
    with pytest.raises(UserError, match="window"):
        Tracker(quantile=0.9, window=3, least=4)


def test_a_phase_on_several_devices_took_as_long_as_on_the_slowest():
    tracker = Tracker(quantile=0.9, least=1)
    tracker.take([ended(0, 9.0), ended(1, 5.0), ended(1, 6.0), ended(1, 4.0)])
    assert tracker.seen(A) == Seen(rollout_s=6.0)


def test_only_the_last_attempt_counts_and_of_it_not_the_first_iteration():
    tracker = Tracker(quantile=0.9, least=1)
    tracker.take([ended(0, 99.0), ended(1, 5.0)])
    assert tracker.seen(A) == Seen(rollout_s=5.0)
    again = [ended(2, 98.0, attempt=2), ended(2, 97.0), ended(3, 4.0, attempt=2)]
    tracker.take([ended(0, 99.0), ended(1, 5.0), *again])
    assert tracker.seen(A) == Seen(rollout_s=4.0)


def test_a_rollout_that_lacked_devices_for_a_part_of_its_time_is_no_sample_of_it():
    tracker = Tracker(quantile=0.9, least=1)
    partial = ended(2, 50.0)
    partial = dataclasses.replace(partial, data={**partial.data, "whole": False})
    whole = dataclasses.replace(partial, iteration=1, data={"run_s": 5.0, "whole": True})
    tracker.take([ended(0, 9.0), dataclasses.replace(whole, data={**whole.data, "attempt": 1})])
    tracker.take([partial])
    assert tracker.seen(A) == Seen(rollout_s=5.0)


def test_other_events_say_nothing_of_phase_times():
    tracker = Tracker(quantile=0.9, least=1)
    tracker.take([ended(0, 1.0), ended(1, 5.5, kind=EventType.PHASE_START)])
    assert tracker.observed() == {}


def test_a_job_on_other_train_devices_than_it_asked_for_is_planned_anew_for_what_it_asked(lab):
    """It asked for two and trains on one in twice the time."""
    asked = lab.profile(40, 20)
    second = replace(lab.member("b", 40, 40), asked_train_devices=2, asked_profile=asked, slo=2.0)
    state = lab.state(lab.group(lab.member("a", 50, 50, slo=1.1), second))
    found = broken(state, {B: Seen(train_s=100)})
    assert found.profile.train.worst_s == pytest.approx(50 * SAFETY)


def test_every_planned_phase_is_read_from_the_journal():
    tracker = Tracker(quantile=0.9, least=1)
    phases = (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC)
    tracker.take(ended(n, float(n + k), phase=p) for n in (0, 1) for k, p in enumerate(phases))
    assert tracker.seen(A) == Seen(rollout_s=1, train_s=2, sync_s=3)


def test_phases_within_their_plan_break_nothing(pair):
    seen = {A: Seen(rollout_s=50, train_s=30), B: Seen(rollout_s=40, train_s=40)}
    assert broken(pair, seen) is None
    assert list(at_risk(pair, {B: seen[B]})) == []


def test_the_job_that_grew_is_the_one_to_go(pair):
    """b at (70, 40): 120 s a round, where a accepts 110 s."""
    found = broken(pair, {A: Seen(rollout_s=50), B: Seen(rollout_s=70, train_s=40)})
    assert (found.job_id, found.growth) == (B, 70 / 40)
    assert found.reading.job_id == A
    assert found.reading.absolute == pytest.approx(1.2)


def test_of_two_that_grew_the_one_that_lengthens_the_round_most_goes(lab):
    """c grew tenfold and is short; b adds 30 s."""
    group = lab.group(
        lab.member("a", 50, 50, slo=1.1), lab.member("b", 40, 40), lab.member("c", 1, 1)
    )
    seen = {B: Seen(rollout_s=70), C: Seen(rollout_s=10)}
    found = broken(lab.state(group), seen)
    assert found.job_id == B


def test_what_was_seen_becomes_its_worst_case_and_some_more(pair):
    found = broken(pair, {B: Seen(rollout_s=70, train_s=20)})
    assert found.profile.rollout.worst_s == pytest.approx(70 * SAFETY)
    assert found.profile.train.worst_s == 40


def test_a_job_that_grew_within_the_promises_stays(pair):
    assert broken(pair, {B: Seen(rollout_s=59)}) is None


def test_the_group_that_breaks_its_promise_most_is_dealt_with_first(lab):
    def one(name, *jobs, at):
        members = [lab.member(n, 50, 50, (f"r{at}",), (f"t{at}",), slo=1.0) for n in jobs]
        return lab.group(*members, name=name)

    state = lab.state(one("g-1", "a", "b", at=0), one("g-2", "c", "d", at=1))
    seen = {A: Seen(rollout_s=60), C: Seen(rollout_s=70)}
    assert broken(state, seen).job_id == C
    assert broken(state, seen, staying={C}).job_id == A


def test_a_job_alone_has_nobody_to_leave(lab):
    state = lab.state(lab.group(lab.member("a", 50, 50, slo=1.0)))
    assert broken(state, {A: Seen(rollout_s=500)}) is None
    (reading,) = at_risk(state, {A: Seen(rollout_s=500)})
    assert reading.breaks_absolute
    assert not reading.breaks_relative


def test_a_job_that_became_short_is_slowed_against_itself_only(pair):
    """b at (10, 10) still waits for rounds of 100 s: 5 x its time alone now, 1.25 x as planned."""
    (reading,) = at_risk(pair, {B: Seen(rollout_s=10, train_s=10)})
    assert (reading.name, reading.iteration_s) == ("b", 100)
    assert (reading.absolute, reading.relative) == (pytest.approx(1.25), pytest.approx(5.0))
    assert (reading.breaks_absolute, reading.breaks_relative) == (False, True)
    assert broken(pair, {B: Seen(rollout_s=10, train_s=10)}) is None


def test_a_sync_that_takes_longer_is_seen_too(pair):
    found = broken(pair, {A: Seen(sync_s=20)})
    assert found.job_id == A
    assert found.profile.sync_s == pytest.approx(20 * SAFETY)


def test_the_job_admitted_again_goes_where_it_fits_and_the_others_stay(lab, pair):
    found = broken(pair, {B: Seen(rollout_s=70)})
    decision = admitted_again(pair, found, spec=lab.spec("b"))
    assert decision.admitted
    assert decision.assignment.group_id is None
    assert decision.assignment.added_nodes == ("r1", "t1")


def test_its_old_place_is_one_of_its_places(lab):
    """Its own promise broke, on a node of its own; with the longer plan it keeps it there."""
    first = lab.member("a", 100, 20, slo=2.0)
    second = lab.member("b", 30, 30, ("r1",), slo=1.9)
    state = lab.state(lab.group(first, second))
    found = broken(state, {B: Seen(rollout_s=95)})
    assert found.job_id == B
    decision = admitted_again(state, found, spec=lab.spec("b", slo=1.9))
    assert decision.assignment.group_id == "g-1"
    assert decision.assignment.added_nodes == ()


def test_without_a_place_it_is_told_why(lab, pair):
    full = replace(pair, cluster=lab.cluster(1, 1))
    decision = admitted_again(full, broken(full, {B: Seen(rollout_s=70)}), spec=lab.spec("b"))
    assert not decision.admitted
    assert decision.reason.code == "slo"


def test_a_margin_of_the_policy_is_there_to_be_used_up(pair):
    """Promises are broken beyond the SLO, not beyond what admission keeps free below it."""
    policy = replace(pair.cluster.policy, margin=0.1)
    with_margin = replace(pair, cluster=replace(pair.cluster, policy=policy))
    assert broken(with_margin, {B: Seen(rollout_s=55)}) is None


def test_growth_is_of_the_phase_that_grew_most(lab):
    member = lab.member("a", 50, 50)
    assert growth(member, Seen(rollout_s=60, train_s=100)) == 2.0
    assert growth(member, None) == 1.0
    assert growth(lab.member("a", 0, 50), Seen(rollout_s=60)) == 1.0


def test_a_profile_is_never_planned_shorter_than_it_was(lab):
    profile = lab.profile(50, 50)
    assert replanned(profile, Seen(rollout_s=10, train_s=20, sync_s=0)) == profile


@pytest.mark.parametrize("seed", range(20))
def test_rounds_are_never_longer_than_planned_while_phases_keep_their_plan(lab, seed):
    rng = random.Random(seed)
    nodes = ("r0", "r1", "r2")
    members = [
        lab.member(
            f"m{n}",
            rng.randrange(1, 100),
            rng.randrange(1, 100),
            tuple(rng.sample(nodes, rng.randrange(1, 4))),
            slo=1.0,
        )
        for n in range(rng.randrange(2, 5))
    ]
    group = lab.group(*members)
    planned_s = period(members, order=group.round).period_s
    seen = {
        m.job_id: Seen(
            rollout_s=rng.uniform(0, m.profile.rollout.worst_s),
            train_s=rng.uniform(0, m.profile.train.worst_s),
        )
        for m in members
    }
    assert all(one.iteration_s <= planned_s * CLOSE for one in readings(group, seen))
