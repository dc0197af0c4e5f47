"""Jobs that are one step off-policy, which want a train and the next rollout at once."""

from __future__ import annotations

import pytest
from controller_world import SimDriver, World

from rmux.events import EventType
from rmux.ids import JobId
from rmux.job import JobState, Phase
from rmux.run.trace_check import check


def spans(world: World, job: str, phase: Phase) -> dict[int, tuple[float, float]]:
    """When each iteration's phase held its device."""
    found: dict[int, list[float]] = {}
    for event in world.events:
        is_span = event.type in (EventType.PHASE_START, EventType.PHASE_END)
        if is_span and event.job_id == job and event.phase is phase:
            found.setdefault(event.iteration, []).append(event.at_s)
    return {n: (at[0], at[1]) for n, at in found.items() if len(at) == 2}


def both_run(driver: SimDriver) -> bool:
    return driver.phase is not Phase.INIT and len(driver.using) == 2


def order(world: World, phase: Phase) -> str:
    grants = [e for e in world.events if e.type is EventType.GRANT and e.phase is phase]
    return "".join(event.job_id.removeprefix("j-") for event in grants)


def test_train_and_next_rollout_run_side_by_side(samples):
    world = World(samples, "a", iterations=8, ahead="a")
    world.run(10)
    driver = world.drivers["j-a"]
    assert driver.finished == 8
    assert driver.most_wants == 2
    rollouts, trains = (spans(world, "j-a", phase) for phase in (Phase.ROLLOUT, Phase.TRAIN))
    for n in range(7):
        assert rollouts[n + 1][0] < trains[n][1]
    assert check(world.events) == []


def test_beside_an_on_policy_job_each_keeps_its_turn(samples):
    world = World(samples, iterations=20, ahead="a")
    world.run(12, until=lambda: not world.members)
    assert {world.states(job)[-1] for job in ("j-a", "j-b")} == {JobState.SUCCEEDED}
    for phase in (Phase.ROLLOUT, Phase.TRAIN):
        granted = order(world, phase)
        assert granted == "ab" * 20
    assert check(world.events) == []


def test_two_of_them_take_turns(samples):
    world = World(samples, iterations=20, ahead="ab")
    world.run(12, until=lambda: not world.members)
    for phase in (Phase.ROLLOUT, Phase.TRAIN):
        granted = order(world, phase)
        both = granted[granted.index("ab") :]
        assert both[:30] == "ab" * 15
    assert check(world.events) == []


def test_a_short_rollout_does_not_make_the_job_late_while_a_long_train_runs(samples):
    """The rollout was granted after the train, and says nothing of when that one is over."""
    times = {"phase_s": 0.1, "rollouts_s": {"b": 1.0}, "train_s": 1.4}
    world = World(samples, iterations=8, ahead="a", late_floor_s=0.0, **times)
    world.run(8, until=lambda: world.drivers and both_run(world.drivers["j-a"]))
    using = world.drivers["j-a"].using
    assert using["r0/0"][1] < using["t0/0"][1]
    assert world.state.runs[JobId("j-a")].due_s > using["t0/0"][1]
    world.run(30, until=lambda: not world.members)
    assert order(world, Phase.ROLLOUT) == "ab" * 8
    assert check(world.events) == []


@pytest.mark.parametrize("desired", ["cancel", "pause"])
def test_it_trains_on_what_it_sampled_before_it_stops(samples, desired):
    world = World(samples, iterations=50, ahead="a")
    world.run(3)
    world.want("j-a", desired)
    stopped = JobState.CANCELLED if desired == "cancel" else JobState.PAUSED
    world.run(3, until=lambda: world.states("j-a")[-1] is stopped)
    driver = world.drivers["j-a"]
    assert driver.rolled == driver.finished < 50
    before = world.drivers["j-b"].finished
    world.run(2)
    assert world.drivers["j-b"].finished > before + 3
    if desired == "pause":
        world.want("j-a", "run")
        world.run(3)
        assert driver.finished > driver.rolled - 2 > 0
        assert world.states("j-a")[-1] is JobState.RUNNING
    assert check(world.events) == []


def test_a_new_controller_goes_on_with_both_phases_that_are_out(samples):
    world = World(samples, "a", iterations=30, ahead="a")
    world.run(3, until=lambda: world.drivers and both_run(world.drivers["j-a"]))
    assert both_run(world.drivers["j-a"])
    world.start_controller(epoch=2)
    world.run(12, until=lambda: not world.members)
    assert world.drivers["j-a"].finished == 30
    assert world.states("j-a").count(JobState.STARTING) == 1
    assert check(world.events) == []


def test_an_attempt_that_dies_in_both_phases_begins_its_iteration_again(samples):
    world = World(samples, "a", iterations=12, ahead="a")
    world.run(4, until=lambda: world.drivers and both_run(world.drivers["j-a"]))
    first = world.drivers["j-a"]
    first.state, first.error = "failed", "killed"
    world.run(15, until=lambda: not world.members)
    again = world.drivers["j-a"]
    assert again.attempt == first.attempt + 1
    starts = [
        event.iteration
        for event in world.events
        if event.type is EventType.PHASE_START
        and event.job_id == JobId("j-a")
        and event.phase is Phase.ROLLOUT
        and event.data["attempt"] == again.attempt
    ]
    assert starts == [*range(first.finished, 12)]
    assert check(world.events) == []
