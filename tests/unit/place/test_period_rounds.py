"""Rounds in which short jobs run several times beside a long one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.place.period import CLOSE, MOST_TURNS, Loop, Period, Term, best_round, period_of


def loop(
    name: str, rollout_s: float, train_s: float, node: int, off_s: float = 0, **limits: int
) -> Loop:
    return Loop(
        job_id=JobId(name),
        rollout_s=rollout_s,
        train_s=train_s,
        off_device_s=off_s,
        rollout=frozenset({DeviceId(NodeId(f"r{node}"), 0)}),
        train=frozenset({DeviceId(NodeId("t"), 0)}),
        **limits,
    )


def slowdowns(loops: Sequence[Loop], found: Period) -> list[float]:
    return [found.iteration_s(one.job_id) / one.solo_s for one in loops]


def test_on_nodes_of_their_own_two_turns_of_the_short_job_slow_nobody_down():
    loops = [loop("a", 100, 20, 0), loop("b", 40, 20, 1, max_repeats=2)]
    assert slowdowns(loops, period_of(loops)) == [1.0, 2.0]
    found = best_round(loops)
    assert (found.order, found.period_s) == (("a", "b", "b"), 120)
    assert (found.binding, found.subject) == (Term.CYCLE, "a")
    assert slowdowns(loops, found) == [1.0, 1.0]
    # Trains hold the pool for 60 of 120 s instead of 40.
    trained_s = sum(one.train_s * found.order.count(one.job_id) for one in loops)
    assert trained_s / found.period_s == 0.5


def test_a_long_sync_leaves_room_for_two_turns_on_one_node():
    loops = [loop("a", 100, 100, 0, off_s=40), loop("b", 20, 20, 0, max_repeats=2)]
    found = best_round(loops)
    assert (found.period_s, found.order.count("b")) == (240, 2)
    assert slowdowns(loops, found) == [1.0, 3.0]


def test_without_idle_time_on_one_node_nothing_is_repeated():
    loops = [loop("a", 100, 100, 0), loop("b", 20, 20, 0, max_repeats=2)]
    found = best_round(loops)
    assert (found.order, found.period_s) == (("a", "b"), 200)
    assert period_of(loops, order=[JobId("a"), JobId("b"), JobId("b")]).period_s == 240


def test_nothing_is_repeated_where_no_job_allows_it():
    loops = [loop("a", 100, 20, 0), loop("b", 40, 20, 1)]
    assert best_round(loops) == period_of(loops)
    caps_s = {JobId("b"): 66.0}  # broken, and still no turn more
    assert best_round(loops, caps_s=caps_s) == period_of(loops)


def test_a_cap_that_one_turn_each_breaks_is_kept_by_repeating():
    # Even two turns of b make a slower, which it accepts.
    loops = [loop("a", 60, 60, 0), loop("b", 20, 20, 0, max_repeats=3)]
    caps_s = {JobId("a"): 180.0, JobId("b"): 90.0}
    assert period_of(loops).period_s == 120
    found = best_round(loops, caps_s=caps_s)
    assert found.order.count("b") == 2
    assert found.period_s == 160
    assert all(found.iteration_s(job) <= cap for job, cap in caps_s.items())


def test_no_cap_that_one_turn_each_keeps_is_given_up_for_use():
    loops = [loop("a", 100, 20, 0), loop("b", 50, 20, 1, max_repeats=2)]
    kept = best_round(loops)  # two turns of b take 140 s, and a takes 120 s alone
    assert (kept.order, kept.period_s) == (("a", "b"), 120)
    looser = best_round(loops, caps_s={JobId("a"): 140.0, JobId("b"): 140.0})
    assert (looser.order, looser.period_s) == (("a", "b", "b"), 140)


def test_caps_that_no_round_keeps_leave_one_turn_each():
    loops = [loop("a", 60, 60, 0), loop("b", 20, 20, 0, max_repeats=3)]
    caps_s = {JobId("a"): 120.0, JobId("b"): 50.0}
    assert best_round(loops, caps_s=caps_s) == period_of(loops)


def test_jobs_that_take_no_time_are_not_repeated():
    loops = [loop("a", 0, 0, 0, max_repeats=3), loop("b", 0, 0, 1)]
    assert best_round(loops).order == ("a", "b")


def every_round(loops: Sequence[Loop]) -> Iterator[Period]:
    """Each number of turns, in each order."""
    for counts in itertools.product(*(range(1, one.max_repeats + 1) for one in loops)):
        if min(counts) > 1:
            continue
        turns = [one.job_id for one, count in zip(loops, counts, strict=True) for _ in range(count)]
        for order in set(itertools.permutations(turns[1:])):
            yield period_of(loops, order=(turns[0], *order))


def use(loops: Sequence[Loop], found: Period) -> float:
    """Device-seconds per second; one node and one train device each."""
    return sum((one.rollout_s + one.train_s) / found.iteration_s(one.job_id) for one in loops)


def test_of_all_rounds_that_keep_the_caps_the_one_that_uses_most_is_found():
    rng = random.Random(3)
    repeated = 0
    for _ in range(60):
        loops = [
            loop(
                f"j{index}",
                rng.randint(1, 60),
                rng.randint(1, 60),
                rng.randint(0, 1),
                rng.choice((0, 0, rng.randint(1, 60))),
                max_repeats=rng.randint(1, 3 if index else 2),
                max_staleness=rng.choice((0, 0, 1)),
            )
            for index in range(rng.randint(2, 3))
        ]
        if sum(one.max_repeats for one in loops) > 6:
            loops[-1] = replace(loops[-1], max_repeats=1)
        plain = period_of(loops)
        caps_s = rng.choice((None, {one.job_id: rng.uniform(1, 3) * one.solo_s for one in loops}))
        kept_s = caps_s or {one.job_id: plain.period_s for one in loops}
        rounds = [
            some
            for some in every_round(loops)
            if all(some.iteration_s(job) <= cap_s * CLOSE for job, cap_s in kept_s.items())
        ]
        found = best_round(loops, caps_s=caps_s)
        assert found.period_s == pytest.approx(period_of(loops, order=found.order).period_s)
        if not rounds:
            assert found == plain
            continue
        assert all(found.iteration_s(job) <= cap_s * CLOSE for job, cap_s in kept_s.items())
        assert use(loops, found) == pytest.approx(max(use(loops, some) for some in rounds))
        repeated += len(found.order) > len(loops)
    assert 5 < repeated < 55


def test_a_very_short_job_gets_no_more_turns_than_a_round_may_have():
    loops = [loop("a", 1000, 1000, 0), loop("b", 1, 1, 1, max_repeats=16)]
    found = best_round(loops)
    assert len(found.order) == MOST_TURNS
    assert (found.period_s, found.iteration_s(JobId("a"))) == (2000, 2000)
