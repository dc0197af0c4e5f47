"""The controller's decision, in a small world: real gates, drivers of a few lines, no clock."""

from __future__ import annotations

import dataclasses

import pytest
from controller_world import GROUP, NODES, TICK_S, World

from rmux.clock import ManualClock
from rmux.events import EventType
from rmux.job import JobState, Phase
from rmux.run.controller import plan
from rmux.run.controller.state import (
    Inputs,
    State,
)
from rmux.run.controller.step import step
from rmux.run.messages import (
    NodeReport,
    streams,
)
from rmux.run.runner.outbox import Outbox
from rmux.run.trace_check import check

ENDED = [JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED]


def test_two_jobs_share_two_devices_to_their_ends(samples):
    world = World(samples, iterations=4)
    world.run(10)
    assert world.finish == "every member ended"
    assert world.states("j-a") == world.states("j-b") == ENDED
    assert check(world.events) == []
    assert world.count(EventType.ITERATION_END) == 8
    # Alone, four iterations of two phases take 0.8 s; in turns both take little more.
    assert world.clock.now_s() < 2.2


def test_nothing_is_ordered_or_granted_before_every_gate_has_told_its_position(samples):
    world = World(samples, gate_wait_s=1.0)
    world.silent.add("r0")
    world.run(0.9)
    assert world.hub.streams.keys() == {streams.node_reports(GROUP, "t0")}
    world.run(0.3)
    assert world.states("j-a") == [JobState.STARTING, JobState.RUNNING]
    assert world.count(EventType.GRANT, device="r0/0") == 0, "it would not be heard"
    world.silent.clear()
    world.run(10)
    assert world.finish
    assert check(world.events) == []


def test_a_gate_that_falls_silent_gets_no_grants_until_it_is_back(samples):
    world = World(samples, iterations=50)
    world.run(1.0)
    world.silent.add("r0")
    world.run(0.5)
    before = world.count(EventType.GRANT, device="r0/0")
    world.run(1.0)
    assert world.count(EventType.GRANT, device="r0/0") == before
    world.silent.clear()
    world.run(1.0)
    assert world.count(EventType.GRANT, device="r0/0") > before
    assert check(world.events) == []


def test_an_emptied_channel_costs_a_heartbeat_and_nothing_else(samples):
    world = World(samples, iterations=6)
    for number in range(100):
        if not world.finish:
            world.run(TICK_S * (3 + number % 5))
            world.hub.flush()
    assert world.finish == "every member ended"
    assert check(world.events) == []
    assert world.count(EventType.ITERATION_END) == 12


def test_without_a_safe_lease_nothing_new_is_granted(samples):
    world = World(samples, iterations=50)
    world.run(1.0)
    world.may_grant = False
    world.run(0.3)
    before = world.count(EventType.GRANT)
    world.run(1.0)
    assert world.count(EventType.GRANT) == before
    world.may_grant = True
    world.run(0.5)
    assert world.count(EventType.GRANT) > before


def test_a_locked_store_delays_no_grant(samples):
    world = World(samples, iterations=50)
    world.run(1.0)
    before = world.state.batch_n
    world.stores = False
    grants = sum(world.state.seqs.values())
    world.run(2.0)
    assert sum(world.state.seqs.values()) > grants + 10
    assert world.state.acks["j-a/1"] < world.drivers["j-a"].event_n, "not stored, not acked"
    world.stores = True
    world.run(0.1)
    assert world.state.stored_n > before
    assert check(world.events) == []


def test_a_new_controller_goes_on_where_the_last_one_was_cut_off(samples):
    world = World(samples, iterations=6, phase_s=0.3)
    world.run(1.0)
    running = dict(world.state.held)
    assert running
    world.unstored = []  # what it had not written yet is lost with it
    world.start_controller(epoch=2)
    world.run(0.1)
    assert world.state.held == running, "what is out is neither lost nor given again"
    world.run(20)
    assert world.finish == "every member ended"
    assert check(world.events) == []
    assert world.drivers["j-a"].attempt == 1
    assert {event.data["epoch"] for event in world.events if event.type is EventType.GRANT} == {
        1,
        2,
    }


def test_what_died_with_everybody_is_journaled_as_found_idle_before_anything_new(samples):
    world = World(samples, iterations=6)
    world.run(1.0)
    world.open_grants = tuple(world.state.held.values())
    assert world.open_grants
    world.unstored, world.drivers = [], {}
    world.outboxes = {
        node: Outbox(source=f"later-{node}", group=GROUP, node=node, clock=world.clock)
        for node in NODES
    }
    world.start_gates()
    world.start_controller(epoch=2)
    world.run(20)
    assert world.finish == "every member ended"
    assert check(world.events) == []
    found = [event for event in world.events if event.data.get("found")]
    assert {event.device for event in found} == {grant.device for grant in world.open_grants}


@pytest.mark.parametrize("device", ["r0/0", "t0/0"])
def test_a_driver_past_its_bound_is_fenced_at_its_home_whichever_node_it_holds(samples, device):
    world = World(samples, iterations=8, fence_floor_s=1.0, fence_factor=0.0)
    world.run(1.0)
    driver = world.drivers["j-a"]
    world.run(5, until=lambda: device in driver.using)
    driver.hangs = True
    world.run(30)
    (lost,) = (
        event
        for event in world.events
        if event.type is EventType.JOB_STATE and event.data["state"] == JobState.LOST
    )
    assert lost.job_id == "j-a"
    assert lost.data["error"].endswith(f"held {device} for more than 1 s")
    assert world.drivers["j-a"].attempt == 2
    assert world.finish == "every member ended"
    assert check(world.events) == []


def test_a_dead_driver_is_started_again_and_the_others_do_not_wait(samples):
    world = World(samples, iterations=8)
    world.run(1.0)
    world.drivers["j-a"].state, world.drivers["j-a"].error = "failed", "boom"
    reached = world.drivers["j-a"].finished
    world.run(0.15)
    assert world.states("j-a")[-1] is JobState.LOST
    assert world.errors["j-a"] == "boom"
    world.run(20)
    assert world.finish == "every member ended"
    assert world.states("j-a")[2:] == [JobState.LOST, *ENDED]
    assert world.states("j-b") == ENDED
    assert check(world.events) == []
    begun = [e.iteration for e in world.events if e.source == "j-a/2"]
    assert begun[0] == reached


def test_the_next_attempt_waits_until_the_store_knows_how_far_the_last_one_came(samples):
    world = World(samples, iterations=8)
    world.run(1.0)
    world.stores = False
    world.drivers["j-a"].state = "failed"
    world.run(2.0)
    assert world.drivers["j-a"].attempt == 1
    world.stores = True
    world.run(0.5)
    assert world.drivers["j-a"].attempt == 2


def test_delays_grow_and_a_job_that_keeps_failing_is_given_up_with_its_error(samples):
    world = World(samples, iterations=8)
    view = world.members["j-a"]
    spec = dataclasses.replace(view.job.spec, restart_limit=2)
    world.change("j-a", spec=spec)
    delays = []
    for attempt in (1, 2, 3):
        world.run(
            5, until=lambda n=attempt: "j-a" in world.drivers and world.drivers["j-a"].attempt == n
        )
        world.drivers["j-a"].state = "failed"
        world.drivers["j-a"].error = "\n".join(f"line {n}" for n in range(40))
        failed_s = world.clock.now_s()
        world.run(
            5,
            until=lambda n=attempt: world.drivers["j-a"].attempt > n or "j-a" not in world.members,
        )
        delays.append(world.clock.now_s() - failed_s)
    assert world.states("j-a")[-1] is JobState.FAILED
    assert world.errors["j-a"].splitlines() == [f"line {n}" for n in range(20, 40)]
    assert delays[1] == pytest.approx(2 * delays[0], rel=0.3)
    assert world.drivers["j-a"].attempt == 3
    world.run(20)
    assert world.states("j-b") == ENDED


def test_a_job_that_does_not_come_in_time_loses_its_turns_and_only_its_own(samples):
    world = World(samples, iterations=100, late_floor_s=0.2)
    world.run(1.0)
    world.drivers["j-a"].sleeps = True
    world.run(1.5)
    before = world.drivers["j-b"].finished
    world.run(2.0)
    assert world.drivers["j-b"].finished - before >= 6
    world.drivers["j-a"].sleeps = False
    before = world.drivers["j-a"].finished
    world.run(2.0)
    assert world.drivers["j-a"].finished - before >= 4
    assert check(world.events) == []


@pytest.mark.parametrize("desired", ["cancel", "cancel-now"])
def test_a_cancelled_job_ends_and_leaves_its_group(samples, desired):
    world = World(samples, iterations=30)
    world.run(1.0)
    world.want("j-a", desired)
    world.run(2.0)
    assert world.states("j-a")[-1] is JobState.CANCELLED
    assert "j-a" not in world.members
    assert all(grant.job == "j-b" for grant in world.state.held.values())


def test_a_job_cancelled_before_its_start_never_gets_a_driver(samples):
    world = World(samples)
    world.want("j-a", "cancel")
    world.run(10)
    assert world.states("j-a") == [JobState.CANCELLED]
    assert "j-a" not in world.drivers


def test_a_paused_job_is_not_waited_for_and_goes_on_later(samples):
    world = World(samples, iterations=12)
    world.run(1.0)
    world.want("j-a", "pause")
    world.run(1.0)
    assert world.states("j-a")[-1] is JobState.PAUSED
    a, b = (world.drivers[job].finished for job in ("j-a", "j-b"))
    world.run(1.0)
    assert world.drivers["j-a"].finished == a
    assert world.drivers["j-b"].finished >= b + 3
    world.want("j-a", "run")
    world.run(20)
    assert world.finish == "every member ended"
    assert check(world.events) == []


@pytest.mark.parametrize("how", ["down", "signal"])
def test_going_down_puts_every_job_back_and_a_later_controller_resumes_it(samples, how):
    world = World(samples, iterations=6)
    world.run(1.2)
    if how == "down":
        world.desired = "down"
    else:
        world.stop = True
    world.run(2.0)
    assert world.finish == "down"
    assert [view.job.state for view in world.members.values()] == [JobState.PLACED] * 2
    reached = world.members["j-a"].job.iteration
    assert reached > 0
    world.desired, world.stop, world.finish = "run", False, ""
    world.start_controller(epoch=2)
    world.run(20)
    assert world.finish == "every member ended"
    assert world.drivers["j-a"].attempt == 2
    assert check(world.events) == []
    assert next(e.iteration for e in world.events if e.source == "j-a/2") == reached


def test_a_group_that_stays_does_not_finish_and_takes_a_newcomer(samples):
    world = World(samples, "a")
    world.start_controller(epoch=2, stay=True)
    world.run(3)
    assert not world.finish
    assert not world.members
    world.members["j-c"] = world._member("j-c")
    world.run(3)
    assert world.states("j-c") == ENDED


def test_a_group_that_never_had_a_member_waits_for_one(samples):
    world = World(samples, "")
    world.run(1)
    assert not world.finish
    world.members["j-a"] = world._member("j-a")
    world.run(3)
    assert world.finish == "every member ended"


def test_a_joiner_shares_and_the_trace_stays_clean(samples):
    world = World(samples, "a", iterations=8)
    world.run(0.6)
    world.members["j-b"] = world._member("j-b")
    world.run(20)
    assert world.finish == "every member ended"
    assert check(world.events) == []


def test_iterations_and_rewards_reach_the_job_and_events_are_stored_once(samples):
    world = World(samples, "a", iterations=5)
    world.run(1.0)
    job = world.members["j-a"].job
    assert job.iteration == world.drivers["j-a"].finished > 1
    assert job.reward_first == job.reward_last == 0.5
    numbers = [event.source_n for event in world.events if event.source == "j-a/1"]
    assert numbers == list(range(1, len(numbers) + 1))


def test_host_memory_is_journaled_when_it_changed_and_not_too_often():
    clock = ManualClock()
    state = State(group_id=GROUP, epoch=1, started_s=0.0)
    journaled = []
    for wait_s, resident_bytes in (
        (0, 0),
        (1, 1000),
        (1, 2000),
        (30, 2000),
        (60, 2090),
        (30, 2110),
        (60, 1900),
    ):
        clock.sleep_s(wait_s)
        report = NodeReport(
            node="r0",
            runner="x",
            epoch=1,
            resident_bytes=resident_bytes,
            jobs_bytes=(("j-a", resident_bytes),) if resident_bytes else (),
        )
        inputs = Inputs(now_s=clock.now_s(), utc=clock.utc_now(), reports=(report,))
        state, commands = step(state, inputs)
        for command in commands:
            for operation in command.operations:
                journaled += operation.events
    assert [(event.type, event.node, dict(event.data)) for event in journaled] == [
        (EventType.MEMORY, "r0", {"resident_bytes": found, "jobs": {"j-a": found}})
        for found in (1000, 2000, 2110, 1900)
    ]


def test_runners_are_told_what_admission_counted_and_what_a_cold_wake_leaves(samples):
    world = World(samples, iterations=4)
    for name in ("j-a", "j-b"):
        view = world.members[name]
        train = dataclasses.replace(view.member.profile.train, cold_s=0.05 if name == "j-a" else 9)
        profile = dataclasses.replace(
            view.member.profile, train=train, train_resident_bytes=700, switch_peak_bytes=50
        )
        member = dataclasses.replace(view.member, profile=profile)
        world.members[name] = dataclasses.replace(view, member=member)
    world.start_controller(epoch=1)
    world.run(0.5)
    orders = {order.job: order for order in world.state.sent["t0"][0].drivers}
    assert {order.planned_bytes for order in orders.values()} == {750}
    assert {order.planned_bytes for order in world.state.sent["r0"][0].drivers} == {2**28 + 50}
    assert orders["j-a"].slack_s > 0 > orders["j-b"].slack_s


def test_the_wake_after_a_spill_is_planned_as_a_cold_one_until_it_is_over(samples):
    world = World(samples, iterations=50)
    view = world.members["j-a"]
    train = dataclasses.replace(view.member.profile.train, worst_s=2.0, switch_s=0.5, cold_s=30.0)
    member = dataclasses.replace(
        view.member, profile=dataclasses.replace(view.member.profile, train=train)
    )
    world.members["j-a"] = dataclasses.replace(view, member=member)
    world.start_controller(epoch=1)
    world.run(0.5)
    driver = world.drivers["j-a"]

    def plan_s():
        return plan.planned_s(world.state.runs["j-a"], "train")

    assert plan_s() == 30.0, "by itself a bound allows for a cold start"
    driver.emit(EventType.MEMORY_SHED, what="spill", freed_bytes=5, error="")
    world.run(0.04)
    assert plan_s() == 32.0
    driver.phase = Phase.TRAIN
    driver.emit(EventType.PHASE_END)
    world.run(0.04)
    assert plan_s() == 30.0
    assert plan.train_s(world.state.runs["j-a"]) == 2.5


def test_an_attempt_that_a_runner_elsewhere_wants_to_end_is_fenced_at_its_home(samples):
    world = World(samples, iterations=50)
    world.run(0.5)
    report = NodeReport(node="r0", runner="x", epoch=1, stops=(("j-a", 1, "too much memory"),))
    inputs = Inputs(now_s=world.clock.now_s(), utc=world.clock.utc_now(), reports=(report,))
    state, _ = step(world.state, inputs)
    fences = {order.job: order.fence for order in state.sent["t0"][0].drivers}
    assert fences == {"j-a": "too much memory", "j-b": ""}
