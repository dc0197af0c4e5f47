"""Rollouts that begin on their first device, give some back early, and end without some."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation_world import World, member

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.job import Phase
from rmux.place import rotation
from rmux.place.rotation import Wanted

A, B, C = (member(name, ["r0", "r1"]) for name in "abc")
R0, R1, T = (DeviceId(NodeId(name), 0) for name in ("r0", "r1", "t"))


def roll(name, *devices, iteration=1):
    return {JobId(name): Wanted(phase=Phase.ROLLOUT, iteration=iteration, devices=devices)}


def train(name, iteration=1):
    return {JobId(name): Wanted(phase=Phase.TRAIN, iteration=iteration, devices=(T,))}


def give(rota, wants, *, busy=()):
    turns, after = rotation.next_turns(rota, wants=wants, busy=set(busy), absent=set())
    return [f"{turn.job_id}:{turn.phase}@{turn.device.node}" for turn in turns], after


@pytest.fixture
def without_r0():
    """A still has r0; B rolled out on r1 alone and gave it back."""
    rota = rotation.start([A, B, C])
    _, rota = give(rota, roll("a", R0, R1))
    given_turns, rota = give(rota, roll("b", R0, R1), busy=[R0])
    assert given_turns == ["b:rollout@r1"], "a freed device starts the next job at once"
    return rota


@pytest.mark.parametrize("wants", [{}, train("b")], ids=["rewards", "train"])
def test_a_rollout_that_ended_without_a_device_leaves_it_to_the_next_job(without_r0, wants):
    given_turns, _ = give(without_r0, wants | roll("c", R0, R1))
    assert given_turns[-2:] == ["c:rollout@r0", "c:rollout@r1"]


def test_a_rollout_under_way_is_waited_for_where_its_turn_is_next(without_r0):
    given_turns, rota = give(without_r0, roll("c", R0, R1), busy=[R1])
    assert given_turns == []
    given_turns, _ = give(rota, roll("b", R0) | roll("c", R0, R1), busy=[R1])
    assert given_turns == ["b:rollout@r0"]


def test_a_turn_taken_on_one_device_alone_is_not_made_up_for_on_the_other(without_r0):
    wants = roll("b", R0, R1, iteration=2) | roll("c", R0, R1)
    given_turns, rota = give(without_r0, wants)
    assert given_turns == ["c:rollout@r0", "c:rollout@r1"]
    given_turns, _ = give(rota, wants | roll("a", R0, R1, iteration=2), busy=())
    assert given_turns == ["a:rollout@r0", "a:rollout@r1"]


def test_the_next_jobs_of_a_device_leave_lost_turns_out(without_r0):
    assert without_r0.next_jobs(R1) == ("c", "a", "b")
    assert without_r0.next_jobs(DeviceId(NodeId("other"), 0)) == ()


# --- properties ---------------------------------------------------------------------------------

node_sets = st.sets(st.integers(0, 3), min_size=1, max_size=3).map(sorted)
seconds = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4))
shapes = st.tuples(node_sets, st.booleans(), st.integers(0, 1), seconds)


def world_of(shapes, *, elastic):
    members, times = [], {}
    for number, (nodes, _, staleness, phases) in enumerate(shapes):
        on = [f"r{node}" for node in nodes]
        members.append(member(f"j{number}", on, ["t0", "t1"], max_staleness=staleness))
        times[f"j{number}"] = phases
    world = World(members, times)
    for number, (_, may, _, _) in enumerate(shapes):
        world.jobs[JobId(f"j{number}")].elastic = elastic and may
    return world


@settings(max_examples=40, deadline=None)
@given(shapes=st.lists(shapes, min_size=1, max_size=5))
def test_no_phase_begins_later_than_planned_though_tails_stay_behind(shapes):
    """Planned: every rollout takes its worst case and all its devices at once."""
    planned, live = world_of(shapes, elastic=False), world_of(shapes, elastic=True)
    for _ in range(20 * len(shapes)):
        assert planned.step()
    while live.now_s < planned.now_s:
        assert live.step(), "nothing runs and nothing is given"
    for key, begun_s in live.begun_s.items():
        if key in planned.begun_s:
            assert begun_s <= planned.begun_s[key] + 1e-9, key
    fewest = min(job.finished for job in planned.jobs.values())
    assert all(job.finished >= fewest for job in live.jobs.values())


@settings(max_examples=40, deadline=None)
@given(shapes=st.lists(shapes, min_size=1, max_size=4), data=st.data())
def test_nothing_blocks_while_such_jobs_are_late_crash_and_return(shapes, data):
    world = world_of(shapes, elastic=True)
    for _ in range(25):
        world.step()
        jobs = sorted(world.jobs)
        change = data.draw(st.sampled_from(["none", "late", "crash", "back"]))
        if change == "late":
            world.late = {data.draw(st.sampled_from(jobs))}
        elif change == "crash":
            world.crash(data.draw(st.sampled_from(jobs)))
        elif change == "back" and world.absent:
            world.come_back(data.draw(st.sampled_from(sorted(world.absent))))
    world.late = set()
    for job in sorted(world.absent):
        world.come_back(job)
    before = {job: one.finished for job, one in world.jobs.items()}
    for _ in range(60 * len(world.jobs)):
        assert world.step(), "nothing runs and nothing is given"
    for job, one in world.jobs.items():
        assert one.finished >= before[job] + 3, "nobody starves"
    world.precedence().prepare()  # CycleError where two devices had two phases in opposite orders


def test_the_worlds_of_these_tests_do_give_devices_back_early():
    world = world_of([([0, 1], True, 0, (4, 1, 0)), ([0, 1], True, 0, (4, 1, 0))], elastic=True)
    for _ in range(40):
        assert world.step()
    assert world.freed > 5
