"""Rounds in which jobs have several turns, rounds that change, and jobs one step off-policy."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rotation_world import World, member

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.job import Phase
from rmux.place import rotation
from rmux.place.period import period_of
from rmux.place.rotation import Rotation, Wanted

R, T = DeviceId(NodeId("r"), 0), DeviceId(NodeId("t"), 0)
A, B, C = (member(name, ["r"]) for name in "abc")
LONG, SHORT = (10.0, 2.0, 0.0), (2.0, 1.0, 0.0)


def ids(text: str) -> tuple[JobId, ...]:
    return tuple(map(JobId, text))


def rollout(name: str, iteration: int) -> dict[JobId, Wanted]:
    return {JobId(name): Wanted(phase=Phase.ROLLOUT, iteration=iteration, devices=(R,))}


def train(name: str, iteration: int) -> dict[JobId, Wanted]:
    return {JobId(name): Wanted(phase=Phase.TRAIN, iteration=iteration, devices=(T,))}


def give(rota: Rotation, wants, *, busy=(), absent=()) -> tuple[list[str], Rotation]:
    turns, after = rotation.next_turns(rota, wants=wants, busy=set(busy), absent=set(ids(absent)))
    return [f"{turn.job_id}{turn.iteration}:{turn.phase}" for turn in turns], after


def next_ones(rota: Rotation, count: int) -> str:
    """Who has the next turns, where everybody takes his own."""
    found = []
    for _ in range(count):
        job = rota.next_job(R)
        found.append(job)
        for want in (rollout(job, found.count(job)), train(job, found.count(job))):
            given_turns, rota = give(rota, want)
            assert len(given_turns) == 1
    return "".join(found)


def test_a_job_that_stands_twice_in_the_round_has_two_turns_for_one_of_the_others():
    world = World([A, B], {"a": LONG, "b": SHORT}, turns="abb")
    for _ in range(40):
        assert world.step()
    assert "".join(world.used(R)).startswith("abbabbabb")
    assert "".join(world.used(T)).startswith("abbabbabb")


def test_members_that_the_round_does_not_name_come_last_once_each():
    assert rotation.start([A, B, C], turns=ids("cbcx")).order == ids("cbca")


def test_a_new_order_waits_until_the_round_that_a_device_has_begun_is_over_everywhere():
    rota = rotation.start([A, B])
    given_turns, rota = give(rota, rollout("a", 0))
    rota = rotation.with_members(rota, [A, B], turns=ids("ba"))
    assert (rota.order, rota.version) == (ids("ba"), 2)
    assert rota.next_job(R) == "b"
    given_turns, rota = give(rota, rollout("b", 0) | train("a", 0))
    assert given_turns == ["b0:rollout", "a0:train"]
    assert rota.next_job(R) == "b", "the next round"
    assert rota.next_job(T) == "b", "this round"
    given_turns, rota = give(rota, train("b", 0))
    assert rota.next_job(T) == "b"


def test_an_order_that_nobody_has_begun_holds_at_once():
    rota = rotation.start([A, B])
    assert rotation.with_members(rota, [A, B], turns=ids("ba")).next_job(R) == "b"


def test_the_last_of_two_new_orders_in_one_round_is_taken():
    _, rota = give(rotation.start([A, B]), rollout("a", 0))
    for turns in ("ba", "bba"):
        rota = rotation.with_members(rota, [A, B], turns=ids(turns))
    _, rota = give(rota, rollout("b", 0) | train("a", 0))
    _, rota = give(rota, train("b", 0))
    assert next_ones(rota, 4) == "bbab"


def test_an_order_taken_back_before_its_round_never_holds():
    _, rota = give(rotation.start([A, B]), rollout("a", 0))
    rota = rotation.with_members(rota, [A, B], turns=ids("ba"))
    rota = rotation.with_members(rota, [A, B], turns=ids("ab"))
    _, rota = give(rota, rollout("b", 0))
    assert (rota.next_job(R), rota.version) == ("a", 3)


def test_the_same_turns_again_leave_the_rotation_alone():
    rota = rotation.start([A, B], turns=ids("abb"))
    assert rotation.with_members(rota, [A, B], turns=ids("abb")) is rota
    assert rotation.with_members(rota, [A, B]).order == ids("ab")


def test_a_leaver_is_dropped_with_all_its_turns_in_this_round_and_the_next():
    _, rota = give(rotation.start([A, B, C], turns=ids("abcb")), rollout("a", 0))
    rota = rotation.with_members(rota, [A, B, C], turns=ids("bcab"))
    rota = rotation.with_members(rota, [A, C], turns=ids("bcab"))
    assert rota.next_job(R) == "c"
    _, rota = give(rota, rollout("c", 0))
    assert rota.order == ids("ca")
    assert rota.next_job(R) == "c"


def test_a_joiner_named_between_others_joins_there_in_the_next_round():
    _, rota = give(rotation.start([A, B]), rollout("a", 0))
    rota = rotation.with_members(rota, [A, B, C], turns=ids("cacb"))
    assert rota.next_job(R) == "b"
    _, rota = give(rota, rollout("b", 0) | train("a", 0))
    _, rota = give(rota, train("b", 0))
    assert next_ones(rota, 4) == "cacb"


def test_a_joiner_at_the_end_is_in_from_the_round_under_way():
    _, rota = give(rotation.start([A, B]), rollout("a", 0))
    rota = rotation.with_members(rota, [A, B, C])
    _, rota = give(rota, rollout("b", 0))
    assert rota.next_job(R) == "c"


def test_an_iteration_rolled_out_again_leaves_the_train_turn_of_the_lost_one_to_the_others():
    rota = rotation.start([A, B, C])
    for name in "abc":
        _, rota = give(rota, rollout(name, 0))
    for name in "abc":
        _, rota = give(rota, train(name, 0))
    _, rota = give(rota, rollout("a", 1), busy=[T])
    _, rota = give(rota, rollout("b", 1), busy=[T], absent="a")
    _, rota = give(rota, {}, busy=[T], absent="c")
    given_turns, rota = give(rota, rollout("a", 1), busy=[T])
    assert given_turns == ["a1:rollout"]
    given_turns, rota = give(rota, train("a", 1) | train("b", 1), busy=[R])
    assert given_turns == ["b1:train"]


def test_a_train_in_a_later_turn_than_its_rollout_takes_the_next_rollout_to_the_turn_after():
    rota = rotation.start([A, B])
    for name in "ab":
        _, rota = give(rota, rollout(name, 0))
    given_turns, rota = give(rota, train("b", 0), busy=[R], absent="a")
    assert given_turns == ["b0:train"]
    given_turns, rota = give(rota, train("a", 0), busy=[R])
    assert given_turns == ["a0:train"]
    given_turns, rota = give(rota, rollout("a", 1) | rollout("b", 1), busy=[T])
    assert given_turns == ["b1:rollout"]


def test_an_absent_job_loses_each_of_its_turns():
    rota = rotation.start([A, B], turns=ids("abb"))
    _, rota = give(rota, rollout("a", 0))
    _, rota = give(rota, train("a", 0), absent="b")
    given_turns, rota = give(rota, rollout("a", 1), absent="b")
    assert given_turns == ["a1:rollout"]
    assert rota.next_job(R) == "b"


def test_a_controller_that_takes_over_finds_a_holder_past_its_first_turn():
    rota = rotation.start([A, B], turns=ids("abb"), held={R: B.job_id})
    assert rota.next_job(R) == "b"
    assert rota.next_job(T) == "a"


def test_one_step_off_policy_the_next_rollout_runs_beside_the_train():
    rota = rotation.start([member("a", ["r"], max_staleness=1)])
    a = JobId("a")
    given_turns, rota = give(rota, rollout("a", 0))
    both = {a: (train("a", 0)[a], rollout("a", 1)[a])}
    given_turns, rota = give(rota, both)
    assert sorted(given_turns) == ["a0:train", "a1:rollout"]


def test_one_step_off_policy_a_train_does_not_lose_its_turn_to_the_rollout_given_before_it():
    a = JobId("a")
    rota = rotation.start([member("a", ["r"], max_staleness=1), B])
    _, rota = give(rota, rollout("a", 0))
    _, rota = give(rota, rollout("b", 0))
    both = {a: (train("a", 0)[a], rollout("a", 1)[a])}
    given_turns, rota = give(rota, both, busy=[T])
    assert given_turns == ["a1:rollout"]
    given_turns, rota = give(rota, {a: train("a", 0)[a]} | train("b", 0), busy=[R])
    assert given_turns == ["a0:train"]
    assert rota.next_job(T) == "b"


def test_one_step_off_policy_a_rollout_begun_keeps_its_turn_though_the_train_comes_later():
    """It holds one device, and would block the others if it gave up the turn on the second."""
    r1 = DeviceId(NodeId("r1"), 0)
    wide, other = member("s", ["r", "r1"], max_staleness=1), member("x", ["r1"])
    s, x = wide.job_id, other.job_id
    first = Wanted(phase=Phase.ROLLOUT, iteration=0, devices=(R, r1))
    rest = Wanted(phase=Phase.ROLLOUT, iteration=1, devices=(r1,))
    rota = rotation.start([wide, other])
    _, rota = give(rota, {s: first})
    of_x = {x: Wanted(phase=Phase.ROLLOUT, iteration=0, devices=(r1,))}
    _, rota = give(rota, of_x, busy=[R], absent="s")
    both = {s: (train("s", 0)[s], Wanted(phase=Phase.ROLLOUT, iteration=1, devices=(R, r1)))}
    given_turns, rota = give(rota, both, busy=[r1])
    assert given_turns == ["s1:rollout"]
    given_turns, rota = give(rota, {s: (train("s", 0)[s], rest)} | train("x", 0), busy=[R, r1])
    assert given_turns == ["x0:train"]
    given_turns, rota = give(rota, {s: (train("s", 0)[s], rest)}, busy=[R, r1])
    assert given_turns == ["s0:train"], "in the turn of the rollout under way"
    given_turns, rota = give(rota, {s: rest}, busy=[R, T])
    assert given_turns == ["s1:rollout"]


def test_one_step_off_policy_a_lost_train_turn_costs_one_rollout_turn_and_no_lasting_step():
    """Later rollouts and trains of the same iteration have the same turn again."""
    times = {"a": (5.0, 5.0, 0.0), "b": (5.0, 5.0, 0.0)}
    world = World([member(name, ["r"], max_staleness=1) for name in "ab"], times)
    for _ in range(8):
        assert world.step()
    world.late = {JobId("a")}
    world.dispatch()
    world.crash(JobId("a"))
    assert world.step()
    world.come_back(JobId("a"))
    for _ in range(60):
        assert world.step()
    for job in world.jobs.values():
        assert job.ends[-1] - job.ends[-2] == 10


# --- properties ---------------------------------------------------------------------------------

node_sets = st.sets(st.integers(0, 3), min_size=1, max_size=3).map(sorted)
train_sets = st.sampled_from([["t0"], ["t0", "t1"], ["t0", "t2"]])
"""All share one, or parts of the group would have periods of their own."""
seconds = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4))
shapes = st.tuples(node_sets, train_sets, st.integers(1, 3), st.integers(0, 1), seconds)


def drawn(shapes, *, first: int = 0):
    """Members, their times and the turns of a round before it is mixed."""
    members, times, turns = [], {}, []
    for number, (nodes, train_on, repeats, staleness, phases) in enumerate(shapes, start=first):
        name = f"j{number}"
        members.append(
            member(name, [f"r{node}" for node in nodes], train_on, max_staleness=staleness)
        )
        times[name] = phases
        turns += [name] * repeats
    return members, times, turns


def mixed(data, turns):
    return data.draw(st.permutations(turns))


@settings(max_examples=60, deadline=None)
@given(shapes=st.lists(shapes, min_size=1, max_size=5), data=st.data())
def test_every_device_goes_round_by_round_through_one_list_while_orders_change(shapes, data):
    members, times, turns = drawn(shapes)
    world = World(members, times, mixed(data, turns))
    fixed: dict[int, tuple[JobId, ...]] = {}
    for _ in range(4):
        for _ in range(data.draw(st.integers(1, 10))):
            assert world.step(), "nothing runs and nothing is given"
        for number, jobs in fixed.items():
            assert world.lists[number] == jobs, "a round that was begun stays as it was"
        fixed |= world.lists
        new = mixed(data, turns)
        before = world.rotation
        world.change(members, new)
        assert world.rotation.version == before.version + (world.rotation is not before)
        furthest = max(number for number, _ in world.rotation.cursors.values())
        assert world.rotation.rounds.order_of(furthest + 1) == tuple(new)
    for _ in range(10 * len(turns)):
        assert world.step(), "nothing runs and nothing is given"
    for device in world.rotation.cursors:
        expected = [
            job
            for number in range(max(world.lists) + 1)
            for job in world.lists[number]
            if device in world.rotation.placements[job].devices
        ]
        used = world.used(device)
        assert used == expected[: len(used)]
        assert len(expected) - len(used) <= 3 * len(turns), "no device stays behind"


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(shapes, min_size=1, max_size=4),
    spare=st.lists(shapes, max_size=2),
    data=st.data(),
)
def test_nothing_blocks_while_jobs_are_late_crash_return_join_leave_and_change_places(
    shapes, spare, data
):
    members, times, turns = drawn(shapes)
    later, more, _ = drawn(spare, first=len(shapes))
    world = World(members, times | more, mixed(data, turns))
    for _ in range(20):
        world.step()
        _disturb(world, later, data)
    world.late = set()
    for job in sorted(world.absent):
        world.come_back(job)
    before = {job: one.finished for job, one in world.jobs.items()}
    rounds = len(world.rotation.order) / min(map(world.rotation.order.count, world.jobs))
    for _ in range(round(25 * len(world.jobs) * rounds)):
        assert world.step(), "nothing runs and nothing is given"
    for job, one in world.jobs.items():
        assert one.finished >= before[job] + 3, "nobody starves"
    world.precedence().prepare()  # CycleError where two devices had two phases in opposite orders


def _disturb(world: World, later, data) -> None:
    kinds = ["none", "late", "crash", "back", "join", "leave", "order", "bare"]
    change, jobs = data.draw(st.sampled_from(kinds)), sorted(world.jobs)
    members, order = world.members, list(world.rotation.order)
    if change == "late":
        world.late = {data.draw(st.sampled_from(jobs))}
    elif change == "crash":
        world.crash(data.draw(st.sampled_from(jobs)))
    elif change == "back" and world.absent:
        world.come_back(data.draw(st.sampled_from(sorted(world.absent))))
    elif change == "join" and later:
        joiner = later.pop()
        named = data.draw(st.integers(0, 2))
        world.change([*members, joiner], mixed(data, order + [joiner.job_id] * named))
    elif change == "leave" and len(jobs) > 1:
        gone = data.draw(st.sampled_from(jobs))
        world.change([one for one in members if one.job_id != gone], order)
    elif change == "order":
        world.change(members, mixed(data, order))
    elif change == "bare":
        world.change(members)


@settings(max_examples=25, deadline=None)
@given(shapes=st.lists(shapes, min_size=1, max_size=4), data=st.data())
@example(shapes=[([0], ["t0"], 1, 0, (100, 20, 0)), ([1], ["t0"], 2, 0, (40, 20, 0))], data=None)
def test_the_rotation_runs_a_round_in_exactly_its_period(shapes, data):
    members, times, turns = drawn(shapes)
    world = World(members, times, mixed(data, turns) if data else turns)
    per_round = world.rotation.order.count(members[0].job_id)
    ends = world.jobs[members[0].job_id].ends
    while len(ends) < 100 * per_round + 1:
        assert world.step()
    planned_s = period_of(world.loops(), order=world.rotation.order).period_s
    # 60 rounds hold whole patterns of 1 to 6 rounds.
    took_s = (ends[100 * per_round] - ends[40 * per_round]) / 60
    assert took_s == pytest.approx(planned_s)
    if data is None:
        assert planned_s == 120, "the short job runs twice while the long one runs once"
