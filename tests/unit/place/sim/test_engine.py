"""Phase by phase: fixed phase times give the period exactly, and what happens is sound."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmux import timeline
from rmux.errors import InternalError
from rmux.estimate import PhaseEstimate
from rmux.events import EventType, PhaseEvent
from rmux.group import CoExecGroup, Member
from rmux.ids import JobId
from rmux.job import Phase
from rmux.place.period import period
from rmux.place.sim.dispatch import Dispatch
from rmux.place.sim.durations import Fixed, Jittered
from rmux.place.sim.engine import JobTimes, Options, Result, run
from rmux.place.sim.faults import Failures
from rmux.run.trace_check import check

MAX_CYCLICITY = 12
"""Rounds after which the regimes of the small groups here repeat."""


def simulate(*groups: CoExecGroup, **options: Any) -> Result:
    return run(groups, Options(**{"iterations": 150, "leave": False, **options}))


def settles_at(times: JobTimes, period_ms: float) -> bool:
    """Whether the last iterations repeat with this period to the millisecond: a regime may span
    several rounds."""
    ends = [one.end_ms for one in times.iterations]
    return any(
        all(
            abs(ends[-last] - ends[-last - rounds] - rounds * period_ms) < 1e-6
            for last in range(1, 2 * MAX_CYCLICITY)
        )
        for rounds in range(1, MAX_CYCLICITY + 1)
    )


def agrees(group: CoExecGroup) -> bool:
    order = [member.job_id for member in group.members]
    period_ms = 1000 * period(group.members, order=order).period_s
    return all(settles_at(times, period_ms) for times in simulate(group).jobs.values())


def random_member(lab, rng: random.Random, name: str, nodes: tuple[str, ...], **changes: Any):
    member = lab.member(name, rng.randint(1, 20), rng.randint(1, 20), nodes, **changes)
    switch = {
        phase: replace(getattr(member.profile, phase), switch_s=rng.choice((0, 0, 0.25)))
        for phase in ("rollout", "train")
    }
    return replace(member, profile=replace(member.profile, **switch))


def test_strict_order_holds_the_cycle_where_queues_lock_two_jobs_in_and_the_third_out(lab):
    group = lab.group(
        lab.member("a", 17, 2, ("r2",)),
        lab.member("b", 7, 10, ("r1",)),
        lab.member("c", 20, 7, ("r0",)),
    )
    strict, fifo = simulate(group), simulate(group, dispatch=Dispatch.FIFO)
    assert [strict.jobs[m.job_id].iteration_s(skip=50) for m in group.members] == [27, 27, 27]
    assert [fifo.jobs[m.job_id].iteration_s(skip=50) for m in group.members] == [19, 19, 38]


@pytest.mark.parametrize(
    ("dispatch", "before_s", "after_s"), [(Dispatch.FIFO, 16.0, 42.0), (Dispatch.STRICT, 48, 42)]
)
def test_a_shorter_rollout_makes_a_job_later_under_queues_and_never_in_strict_order(
    lab, dispatch, before_s, after_s
):
    def b_s(rollout_s: float) -> float:
        group = lab.group(
            lab.member("a", 18, 18, ("r0",)),
            lab.member("b", 9, 2, ("r1",)),
            lab.member("c", rollout_s, 13, ("r0",)),
            lab.member("d", 18, 9, ("r0",)),
        )
        return simulate(group, dispatch=dispatch).jobs[JobId("j-b")].iteration_s(skip=50)

    assert b_s(12) == pytest.approx(before_s, abs=0.1)
    assert b_s(4) == pytest.approx(after_s, abs=0.1)


@pytest.mark.parametrize(
    "jobs",
    [
        [(20, 20, "r0"), (19, 18, "r1"), (19, 1, "r0 r1")],
        [(100, 140, "r0 r1"), (100, 50, "r1 r2"), (100, 50, "r0 r2")],
        [(18, 7, "r0 r1"), (18, 6, "r2"), (7, 11, "r0 r1 r2")],
        [(10, 6, "r0 r3"), (17, 5, "r0 r1 r2"), (11, 19, "r2 r3")],
    ],
)
def test_partly_overlapping_nodes_take_the_period_of_their_order_and_not_the_largest_term(
    lab, jobs
):
    members = [
        lab.member(f"m{n}", r, t, tuple(nodes.split())) for n, (r, t, nodes) in enumerate(jobs)
    ]
    assert agrees(lab.group(*members))


@pytest.mark.parametrize("seed", range(12))
def test_fixed_times_on_one_node_give_the_period_to_the_millisecond(lab, seed):
    rng = random.Random(seed)
    members = [random_member(lab, rng, f"m{n}", ("r0",)) for n in range(rng.randint(1, 4))]
    assert agrees(lab.group(*members))


@pytest.mark.parametrize("seed", range(12))
def test_fixed_times_on_equal_or_disjoint_nodes_give_the_period_to_the_millisecond(lab, seed):
    rng = random.Random(seed)
    sets = [("r0",), ("r1", "r2"), ("r3",)]
    members = [
        random_member(lab, rng, f"m{n}", rng.choice(sets), sync_s=rng.choice((0, 1.5, 4)))
        for n in range(rng.randint(2, 5))
    ]
    assert agrees(lab.group(*members))


@given(seed=st.integers(0, 10**6))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_fixed_times_on_any_nodes_give_the_period_to_the_millisecond(lab, seed):
    rng = random.Random(seed)
    assert agrees(random_group(lab, rng))


@given(seed=st.integers(0, 10**6))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_repeated_turns_and_one_step_off_policy_jobs_give_the_period_of_their_round(lab, seed):
    rng = random.Random(seed)
    nodes = ["r0", "r1", "r2"]
    members = [
        replace(
            random_member(lab, rng, f"m{n}", tuple(rng.sample(nodes, rng.randint(1, 3)))),
            max_staleness=rng.choice((0, 0, 1)),
            max_repeats=3,
        )
        for n in range(rng.randint(1, 3))
    ]
    turns = [member.job_id for member in members]
    for member in members[1:]:
        for _ in range(rng.choice((0, 0, 1, 2))):
            turns.insert(rng.randint(1, len(turns)), member.job_id)
    period_ms = 1000 * period(members, order=turns).period_s
    result = simulate(lab.group(*members, turns=tuple(turns)), iterations=120)
    for job_id, times in result.jobs.items():
        per_round = replace(times, iterations=times.iterations[:: turns.count(job_id)])
        assert settles_at(per_round, period_ms), (job_id, turns)


def random_group(lab, rng: random.Random, *, syncs: tuple[float, ...] = (0, 0, 3)) -> CoExecGroup:
    nodes = [f"r{n}" for n in range(4)]
    members = [
        random_member(
            lab,
            rng,
            f"m{n}",
            tuple(rng.sample(nodes, rng.randint(1, len(nodes)))),
            sync_s=rng.choice(syncs),
        )
        for n in range(rng.randint(2, 4))
    ]
    return lab.group(*members)


@pytest.mark.parametrize("seed", range(8))
def test_shorter_phases_never_make_any_phase_later(lab, seed):
    rng = random.Random(seed)
    group = random_group(lab, rng)
    planned = simulate(group, iterations=40)
    shorter = simulate(group, iterations=40, durations=Shrunk(rng=random.Random(seed)))
    for job_id, times in planned.jobs.items():
        pairs = zip(shorter.jobs[job_id].iterations, times.iterations, strict=False)
        assert all(a <= b for early, late in pairs for a, b in zip(early, late, strict=True))


@dataclass
class Shrunk:
    """Every phase as long as planned, or shorter."""

    rng: random.Random

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        return Fixed().of(job, phase, iteration, rng) * self.rng.choice((0.3, 0.7, 1.0))


# What is told


def test_the_events_are_those_of_a_sound_live_run(lab):
    group = lab.group(
        lab.member("a", 5, 3, ("r0", "r1"), sync_s=1.0, checkpoint_s=0.5),
        lab.member("b", 4, 3, ("r1",), init_s=2.0),
    )
    result = simulate(group, iterations=20, init=True, events=True)
    assert check(result.events) == []
    ends = timeline.iteration_seconds(result.events)
    assert ends[JobId("j-a")][-1] == result.jobs[JobId("j-a")].iteration_s(skip=10)
    for device, seconds in busy_s(result).items():
        assert seconds <= result.end_s, device
    kinds = {event.type for event in result.events}
    assert kinds == {
        EventType.GRANT,
        EventType.PHASE_START,
        EventType.PHASE_END,
        EventType.RELEASED,
        EventType.ITERATION_END,
        EventType.CHECKPOINT,
        EventType.JOB_STATE,
    }


def busy_s(result: Result) -> dict[str, float]:
    held = timeline.holds(result.events)
    share = timeline.busy_fraction(held, since_s=0.0, until_s=result.end_s)
    return {device: part * result.end_s for device, part in share.items()}


def test_a_device_is_held_from_its_grant_and_the_wait_for_the_others_is_told(lab):
    group = lab.group(lab.member("a", 5, 1, ("r0",)), lab.member("b", 4, 1, ("r0", "r1")))
    events = simulate(group, iterations=1, events=True).events
    start = next(e for e in events if e.job_id == "j-b" and e.type is EventType.PHASE_START)
    assert start.at_s == 5.0
    assert start.data["wait_s"] == 5.0
    assert start.data["devices"] == ["r1/0", "r0/0"]
    grants = {e.device: e.at_s for e in events if e.job_id == "j-b" and is_first_grant(e)}
    assert grants == {"r0/0": 5.0, "r1/0": 0.0}


def is_first_grant(event: PhaseEvent) -> bool:
    of_first = event.phase is Phase.ROLLOUT and event.iteration == 0
    return event.type is EventType.GRANT and of_first


def test_telling_the_events_changes_no_time(lab):
    group = random_group(lab, random.Random(3))
    told, untold = (simulate(group, iterations=30, events=on) for on in (True, False))
    assert told.jobs == untold.jobs
    assert untold.events == ()


def test_a_switch_is_part_of_the_hold_and_comes_before_the_phase(lab):
    member = lab.member("a", 5, 1)
    rollout = PhaseEstimate(worst_s=5, expected_s=5, switch_s=0.5)
    member = replace(member, profile=replace(member.profile, rollout=rollout))
    result = simulate(lab.group(member), iterations=3, events=True)
    start = next(e for e in result.events if e.type is EventType.PHASE_START)
    assert (start.at_s, start.data["switch_s"]) == (0.5, 0.5)
    assert result.jobs[member.job_id].iteration_s(skip=0) == 6.5


# Who comes, goes and fails


def test_init_is_granted_on_both_pools_before_the_first_rollout(lab):
    member = lab.member("a", 5, 1, init_s=2.5)
    times = simulate(lab.group(member), iterations=2, init=True).jobs[member.job_id]
    assert [one.rollout_ms for one in times.iterations] == [2500, 8500]


def test_a_job_that_comes_later_joins_the_round_and_one_that_is_done_leaves_it(lab):
    group = lab.group(lab.member("a", 5, 3), lab.member("b", 5, 3))
    result = run([group], Options(iterations=10, arrivals_s={JobId("j-b"): 33.0}))
    first, second = (result.jobs[JobId(name)].iterations for name in ("j-a", "j-b"))
    assert len(first) == len(second) == 10
    assert second[0].rollout_ms >= 33_000
    gaps = [b.end_ms - a.end_ms for a, b in itertools.pairwise(first)]
    assert gaps[:3] == [8000] * 3
    assert 10_000 in gaps
    assert [b.end_ms - a.end_ms for a, b in itertools.pairwise(second)][-2:] == [8000] * 2


def test_a_failed_job_goes_on_from_its_last_finished_iteration_and_the_others_go_on(lab):
    group = lab.group(
        lab.member("a", 5, 3, sync_s=1.0), lab.member("b", 4, 3, sync_s=1.0), name="g-x"
    )
    failures = Failures(mtbf_s=120.0, detect_s=2.0, restart_s=30.0)
    result = simulate(
        group, iterations=40, failures=failures, init=True, events=True, leave=True, seed=5
    )
    assert check(result.events) == []
    for times in result.jobs.values():
        assert times.attempts > 1
        assert len(times.iterations) == 40
        assert times.lost_iterations <= times.attempts - 1
    assert sum(times.lost_iterations for times in result.jobs.values()) > 0
    starts = [
        (e.job_id, e.data["attempt"], e.iteration)
        for e in result.events
        if e.type is EventType.PHASE_START and e.phase is Phase.ROLLOUT
    ]
    repeated = {(job, iteration) for job, attempt, iteration in starts if attempt > 1}
    assert repeated & {(job, iteration) for job, attempt, iteration in starts if attempt == 1}


def test_a_group_is_held_up_no_longer_than_it_takes_to_see_a_failure(lab):
    group = lab.group(lab.member("a", 5, 3), lab.member("b", 5, 3))
    dies = Failures(mtbf_s=200.0, detect_s=4.0, restart_s=10_000.0)
    result = simulate(group, iterations=60, failures=dies, leave=True, seed=1)
    for times in result.jobs.values():
        gaps = [b.end_ms - a.end_ms for a, b in itertools.pairwise(times.iterations)]
        assert sum(gap > 10_000 + 4_000 for gap in gaps) <= times.attempts - 1


# The slow link


def test_syncs_at_the_same_time_share_the_link_of_all_groups(lab):
    cluster = lab.cluster(rollout=2, train=2, link_bps=8e6)
    groups = [
        lab.group(
            lab.member(f"m{n}", 5, 3, (f"r{n}",), (f"t{n}",), sync_s=1.0, sync_bytes=10**6),
            name=f"g-{n}",
        )
        for n in range(2)
    ]
    together = simulate(*groups, iterations=1, cluster=cluster)
    alone = simulate(groups[0], iterations=1, cluster=cluster)
    assert alone.jobs[JobId("j-m0")].iterations[0].end_ms == 9000
    assert [times.iterations[0].end_ms for times in together.jobs.values()] == [10_000] * 2
    assert all(len(times.iterations) == 1 for times in together.jobs.values())


def test_a_transfer_takes_what_the_others_leave_and_speeds_up_when_they_end(lab):
    cluster = lab.cluster(rollout=2, train=2, link_bps=8e6)
    first = lab.member("m0", 5, 3, sync_s=2.0, sync_bytes=2 * 10**6)
    second = lab.member("m1", 5, 4, ("r1",), ("t1",), sync_s=2.0, sync_bytes=10**6)
    groups = [lab.group(first, name="g-0"), lab.group(second, name="g-1")]
    ends = {
        job: times.iterations[0].end_ms
        for job, times in simulate(*groups, iterations=1, cluster=cluster).jobs.items()
    }
    # From 9 s on half the link each: the first has 1 s of the link left, 2 s at half of it; the
    # second sends at no more than half anyway.
    assert ends == {"j-m0": 11_000, "j-m1": 11_000}


def test_the_same_seed_gives_the_same_run_and_another_seed_another(lab):
    group = random_group(lab, random.Random(9))
    noisy = {"durations": Jittered(Fixed(), 0.3), "iterations": 20}
    one, again, other = (simulate(group, seed=seed, **noisy).jobs for seed in (1, 1, 2))
    assert one == again != other


def test_too_few_iterations_have_no_mean_length(lab):
    member = lab.member("a", 5, 3)
    times = simulate(lab.group(member), iterations=1).jobs[member.job_id]
    with pytest.raises(InternalError, match="too few iterations"):
        times.iteration_s(skip=1)
