"""Strict order without events: the same milliseconds as the engine."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmux.estimate import PhaseEstimate
from rmux.group import CoExecGroup
from rmux.ids import JobId
from rmux.place.period import period
from rmux.place.sim import recurrence
from rmux.place.sim.durations import Fixed, Jittered
from rmux.place.sim.engine import Options, run
from rmux.place.sim.recurrence import Recurrence

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def random_group(lab, rng: random.Random) -> CoExecGroup:
    nodes = [f"r{n}" for n in range(4)]
    members = []
    for n in range(rng.randint(1, 5)):
        member = lab.member(
            f"m{n}",
            rng.uniform(1, 20),
            rng.uniform(1, 20),
            tuple(rng.sample(nodes, rng.randint(1, len(nodes)))),
            sync_s=rng.choice((0.0, 2.5)),
            checkpoint_s=rng.choice((0.0, 0.3)),
        )
        train = PhaseEstimate(worst_s=rng.uniform(1, 20), expected_s=1.0, switch_s=0.4)
        members.append(replace(member, profile=replace(member.profile, train=train)))
    return lab.group(*members)


@given(seed=st.integers(0, 10**6))
@settings(QUICK, max_examples=30)
def test_random_durations_give_the_milliseconds_of_the_engine(lab, seed):
    group = random_group(lab, random.Random(seed))
    durations = Jittered(Fixed(), 0.5)
    fast = recurrence.times(group, iterations=12, durations=durations, seed=seed)
    slow = run([group], Options(iterations=12, durations=durations, seed=seed))
    for job_id, times in slow.jobs.items():
        assert fast[job_id] == list(times.iterations)


@given(seed=st.integers(0, 10**6))
@settings(QUICK, max_examples=25)
def test_repeats_and_off_policy_jobs_have_the_milliseconds_of_the_engine(lab, seed):
    rng = random.Random(seed)
    group = random_group(lab, rng)
    members = tuple(
        replace(member, max_staleness=rng.choice((0, 1)), max_repeats=2) for member in group.members
    )
    turns = [member.job_id for member in members]
    turns.insert(rng.randint(1, len(turns)), turns[-1])
    group = replace(group, members=members, turns=tuple(turns))
    durations = Jittered(Fixed(), 0.5)
    slow = run([group], Options(iterations=6, leave=False, durations=durations, seed=seed))
    one, phases = Recurrence(), recurrence.drawn(durations, seed=seed)
    one.set_members(group.members, group.turns)
    fast = [pair for _ in range(12) for pair in one.go_round(phases)]
    for job_id, times in slow.jobs.items():
        mine = [found for job, found in fast if job == job_id]
        assert mine[: len(times.iterations)] == list(times.iterations)


@given(seed=st.integers(0, 10**6))
@settings(QUICK, max_examples=60)
def test_fixed_durations_come_to_the_period_of_the_order(lab, seed):
    rng = random.Random(seed)
    nodes = [f"r{n}" for n in range(4)]
    members = [
        lab.member(
            f"m{n}",
            rng.randint(1, 20),
            rng.randint(1, 20),
            tuple(rng.sample(nodes, rng.randint(1, len(nodes)))),
        )
        for n in range(rng.randint(1, 5))
    ]
    order = [member.job_id for member in members]
    expected_ms = 1000 * period(members, order=order).period_s
    times = recurrence.times(lab.group(*members), iterations=200, durations=Fixed())
    for iterations in times.values():
        ends = [one.end_ms for one in iterations]
        gaps = {(ends[-1] - ends[-1 - n]) - n * expected_ms for n in range(1, 13)}
        assert min(map(abs, gaps)) < 1e-6


@given(seed=st.integers(0, 10**6))
@settings(QUICK, max_examples=60)
def test_one_step_off_policy_jobs_and_repeated_turns_come_to_the_period_of_the_round(lab, seed):
    rng = random.Random(seed)
    nodes = [f"r{n}" for n in range(3)]
    members = [
        replace(
            lab.member(
                f"m{n}",
                rng.randint(1, 20),
                rng.randint(1, 20),
                tuple(rng.sample(nodes, rng.randint(1, len(nodes)))),
                sync_s=rng.choice((0, 0, 3)),
            ),
            max_staleness=rng.choice((0, 1)),
            max_repeats=3,
        )
        for n in range(rng.randint(1, 4))
    ]
    turns = [member.job_id for member in members]
    for member in members[1:]:
        for _ in range(rng.choice((0, 0, 1, 2))):
            turns.insert(rng.randint(1, len(turns)), member.job_id)
    expected_ms = 1000 * period(members, order=turns).period_s
    one = Recurrence()
    one.set_members(members, turns)
    phases = recurrence.drawn(Fixed(), seed=0)
    ends: dict[JobId, list[int]] = {member.job_id: [] for member in members}
    for _ in range(300):
        for job_id, times in one.go_round(phases):
            ends[job_id].append(times.end_ms)
    for job_id, found in ends.items():
        found = found[:: turns.count(job_id)]
        gaps = [found[-1] - found[-1 - n] - n * expected_ms for n in range(1, 13)]
        assert min(map(abs, gaps)) < 1e-6


def test_a_member_that_joins_is_ready_no_earlier_than_told_and_the_others_keep_their_times(lab):
    first, second = lab.member("a", 5, 3), lab.member("b", 4, 2)
    phases = recurrence.drawn(Fixed(), seed=0)
    one = Recurrence()
    one.set_members([first])
    assert [times.end_ms for _, times in one.go_round(phases)] == [8000]
    one.set_members([first, second], ready_ms={JobId("j-b"): 9000})
    done = dict(one.go_round(phases))
    assert done[JobId("j-a")].rollout_ms == 8000
    assert done[JobId("j-b")].rollout_ms == 13_000  # when the first has left the rollout node
    assert one.finished(JobId("j-a")) == 2


def test_a_member_that_leaves_is_gone_from_the_next_round_on(lab):
    first, second = lab.member("a", 5, 3), lab.member("b", 4, 2)
    phases = recurrence.drawn(Fixed(), seed=0)
    one = Recurrence()
    one.set_members([first, second])
    one.go_round(phases)
    one.set_members([second])
    assert [job for job, _ in one.go_round(phases)] == ["j-b"]


def test_a_member_that_is_away_loses_its_turns_until_it_is_back(lab):
    first, second = lab.member("a", 5, 3), lab.member("b", 4, 2)
    phases = recurrence.drawn(Fixed(), seed=0)
    one = Recurrence()
    one.set_members([first, second], ready_ms={JobId("j-b"): 20_000}, counts={JobId("j-b"): 7})
    rounds = [dict(one.go_round(phases)) for _ in range(4)]
    assert [sorted(done) for done in rounds] == [["j-a"], ["j-a"], ["j-a", "j-b"], ["j-a", "j-b"]]
    assert rounds[2][JobId("j-b")].rollout_ms == 21_000
    assert one.finished(JobId("j-b")) == 9


def test_a_failed_iteration_is_repeated_when_the_job_is_back_and_the_others_go_on(lab):
    first, second = lab.member("a", 5, 3), lab.member("b", 4, 2)
    phases = recurrence.drawn(Fixed(), seed=0)
    one = Recurrence()
    one.set_members([first, second])
    one.go_round(phases)
    one.lose(JobId("j-b"), back_ms=30_000)
    assert one.finished(JobId("j-b")) == 0
    assert [job for job, _ in one.go_round(phases)] == ["j-a"]
    while JobId("j-b") not in (done := dict(one.go_round(phases))):
        pass
    assert done[JobId("j-b")].rollout_ms >= 30_000
    assert one.begin_ms == one.ready_ms(JobId("j-a"))


def test_a_job_that_is_alone_and_away_goes_on_when_it_is_back(lab):
    one = Recurrence()
    one.set_members([lab.member("a", 5, 3)], ready_ms={JobId("j-a"): 4000})
    done = dict(one.go_round(recurrence.drawn(Fixed(), seed=0)))
    assert done[JobId("j-a")].rollout_ms == 4000


def test_a_group_whose_jobs_have_all_ended_has_no_round(lab):
    phases = recurrence.drawn(Fixed(), seed=0)
    one = Recurrence()
    one.set_members([lab.member("a", 5, 3)], limits={JobId("j-a"): 1})
    assert one.begin_ms == 0
    assert len(one.go_round(phases)) == 1
    assert one.begin_ms is None
    assert one.go_round(phases) == []
