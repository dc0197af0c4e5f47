"""Rounds as the store wants them: several turns for a job, and orders that change."""

from __future__ import annotations

from controller_world import World

from rmux.events import EventType
from rmux.ids import JobId
from rmux.job import Phase
from rmux.run.controller.state import Inputs
from rmux.run.controller.step import step
from rmux.run.trace_check import check


def ids(text: str) -> tuple[JobId, ...]:
    return tuple(JobId(f"j-{name}") for name in text)


def order(world: World, phase: Phase) -> str:
    """Who was granted that phase, in order."""
    grants = [e for e in world.events if e.type is EventType.GRANT and e.phase is phase]
    return "".join(event.job_id.removeprefix("j-") for event in grants)


def test_a_job_with_two_turns_a_round_makes_two_iterations_for_one_and_nobody_is_late(samples):
    # Each waits longer for its next turn than its own phases take; that is not being late.
    world = World(samples, iterations=50, late_floor_s=0.0)
    world.turns = ids("abb")
    world.run(6)
    for phase in (Phase.ROLLOUT, Phase.TRAIN):
        granted = order(world, phase)
        granted = granted[granted.index("abb") :]  # from where both are up
        assert len(granted) > 20
        assert granted == ("abb" * len(granted))[: len(granted)]
    assert world.drivers["j-b"].finished > 1.8 * world.drivers["j-a"].finished
    assert check(world.events) == []


def test_other_turns_are_a_new_version_that_holds_from_the_next_round_on(samples):
    world = World(samples, "abc", iterations=100)
    world.run(3)
    assert world.state.rotation.order == ids("abc")
    before, version = order(world, Phase.ROLLOUT), world.state.rotation.version
    world.turns = ids("cbcab")
    world.run(6)
    assert world.state.rotation.version == version + 1
    for phase in (Phase.ROLLOUT, Phase.TRAIN):
        granted = order(world, phase)
        # Whole rounds of the one order, then whole rounds of the other.
        turned = granted.index("cc") + 1
        assert granted[:turned] == "abc" * (turned // 3)
        assert granted[turned:] == ("cbcab" * len(granted))[: len(granted) - turned]
        assert turned - len(before) <= 6, "within the next rounds"
    assert check(world.events) == []


def test_a_new_controller_starts_with_the_turns_of_the_store(samples):
    world = World(samples, iterations=50)
    world.turns = ids("bba")
    world.run(3)
    assert world.state.rotation.order == ids("bba")
    world.start_controller(epoch=2)
    world.run(3)
    assert world.state.rotation.order == ids("bba")
    assert check(world.events) == []


def test_the_same_turns_again_change_nothing(samples):
    world = World(samples, iterations=50)
    world.turns = ids("abb")
    world.run(2)
    before = world.state.rotation.version
    world.run(1)
    assert world.state.rotation.version == before
    idle = Inputs(now_s=world.clock.now_s(), utc=world.clock.utc_now())
    assert step(world.state, idle)[0].turns == ids("abb")
