"""A replay phase by phase: fixed phases come out as planned, others as they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmux.errors import UserError
from rmux.place.sim.dispatch import Dispatch
from rmux.place.sim.metrics import measure_phases
from rmux.place.sim.policies.base import Standing
from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.replay import replay
from rmux.place.sim.segments import Drifts, PhaseSetting, Segments
from rmux.place.sim.study import in_time
from rmux.place.sim.trace import load
from rmux.place.sim.workload import Drawing, Workload
from rmux.place.sim.world import World
from rmux.run.trace_check import check

PHILLY = Path(__file__).parents[3] / "data" / "traces" / "philly_300jobs.csv"


def simulate(name="rollmux-static", window="0:20", seed=1, **setting):
    jobs = Workload(load(PHILLY, window=window), Drawing(seed=seed))
    policy = make(name, Setting(world=World()))
    segments = Segments.following(policy, PhaseSetting(**setting), jobs, seed=1)
    done = replay(jobs, segments, world=World())
    return segments, done


def test_fixed_phases_take_what_was_planned_and_keep_every_promise():
    segments, done = simulate(window="0:60")
    found = measure_phases(segments)
    assert found.iterations > 5_000
    assert (found.within_slo, found.within_slo_relative, found.failures) == (1, 1, 0)
    assert found.measured_to_planned == pytest.approx(1, abs=2e-3)
    assert found.slowest <= 2
    plain = replay(
        Workload(load(PHILLY, window="0:60"), Drawing(seed=1)),
        make("rollmux-static", Setting(world=World())),
        world=World(),
    )
    assert (plain.cost_usd, plain.outcomes) == (done.cost_usd, done.outcomes)


def test_phases_that_vary_or_grow_or_fail_break_promises_and_say_how_often():
    for setting in ({"jitter": 0.2}, {"drift": Drifts.INCREASING}, {"mtbf_s": 7200.0}):
        found = measure_phases(simulate(**setting)[0])
        assert 0.5 < found.within_slo < 1, setting
        assert found.jobs_within_slo < 1
        assert found.measured_to_planned > 1
        assert (found.failures > 0) is ("mtbf_s" in setting)


def test_shrinking_phases_break_the_relative_promise_only():
    found = measure_phases(simulate(drift=Drifts.DECREASING)[0])
    assert found.within_slo == 1
    assert found.measured_to_planned < 1
    mixed = measure_phases(simulate(drift=Drifts.MIXED)[0])
    assert mixed.within_slo_relative <= 1


def test_queues_break_promises_that_strict_order_keeps():
    strict = measure_phases(simulate(window="0:60", seed=0)[0])
    fifo = measure_phases(simulate(window="0:60", seed=0, dispatch=Dispatch.FIFO)[0])
    assert strict.within_slo == 1 > fifo.within_slo


@pytest.mark.parametrize("setting", [{}, {"jitter": 0.3}, {"mtbf_s": 20_000.0}])
def test_what_happens_is_a_sound_journal(setting):
    segments, done = simulate(window="0:12", events=True, **setting)
    events = in_time(segments.events)
    assert len(events) > 1_000
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert events[-1].at_s <= done.span_s
    assert check(events) == []


class Groupless:
    def step(self, now_s, *, arrived, departed):
        return Standing(usd_per_h=0, iteration_s={}, usd_per_h_by_job={})


def test_a_policy_without_groups_has_no_phases_to_simulate():
    with pytest.raises(UserError, match="whose jobs stand in groups"):
        Segments.following(Groupless(), PhaseSetting(), [], seed=0)
