from __future__ import annotations

import pytest

from rmux.cli.progress import Pace, pace_of
from rmux.events import EventType
from rmux.job import Phase


@pytest.fixture
def iteration(samples):
    """Phase starts with their waits, and the iteration's end."""

    def make(end_s, *waits, iteration=1):
        phases = zip((Phase.ROLLOUT, Phase.TRAIN), waits, strict=True)
        starts = [
            samples.event(1, at_s=end_s - 1, phase=phase, iteration=iteration, wait_s=wait_s)
            for phase, wait_s in phases
        ]
        return [*starts, samples.event(1, EventType.ITERATION_END, at_s=end_s, phase=None)]

    return make


def test_before_two_iterations_have_ended_there_is_no_pace(iteration):
    assert pace_of([]) == Pace()
    assert pace_of(iteration(10, 5, 5)) == Pace()


def test_slowdown_is_the_period_over_what_it_would_be_without_waits(iteration):
    pace = pace_of([*iteration(10, 9, 9), *iteration(22, 2, 1), *iteration(34, 2, 1)])
    assert (pace.period_s, pace.waited_s) == (12, 3)
    assert pace.slowdown == pytest.approx(12 / 9)
    assert pace.planned_slowdown(10.0) == pytest.approx(1.2)
    assert pace.planned_slowdown(None) is None


def test_a_phase_that_tells_of_several_devices_waited_once(iteration, samples):
    extra = samples.event(2, at_s=21, phase=Phase.ROLLOUT, wait_s=1.5)
    pace = pace_of([*iteration(10, 0, 0), extra, *iteration(22, 2, 1)])
    assert pace.waited_s == 3


def test_one_long_iteration_does_not_move_the_median(iteration):
    ends = (0, 12, 24, 36, 136)
    pace = pace_of([event for end_s in ends for event in iteration(end_s, 0, 0)])
    assert pace.period_s == 12
