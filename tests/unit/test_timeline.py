from datetime import UTC, datetime

import pytest

from rmux import timeline
from rmux.events import EventType, PhaseEvent
from rmux.ids import JobId
from rmux.job import Phase

A, B = JobId("j-a"), JobId("j-b")


def event(type, at_s, job, iteration, phase=None, device=None, **data):
    return PhaseEvent(
        type=type,
        at=datetime.fromtimestamp(at_s, UTC),
        at_s=at_s,
        source="test",
        source_n=0,
        job_id=job,
        iteration=iteration,
        phase=phase,
        device=device,
        data=data,
    )


def held(start_s, end_s, job, iteration, *, seq, phase=Phase.ROLLOUT, device="r/0"):
    order = {"epoch": 1, "seq": seq}
    return [
        event(EventType.GRANT, start_s, job, iteration, phase, device, **order),
        event(EventType.RELEASED, end_s, job, iteration, phase, device, **order),
    ]


def test_a_device_is_held_from_its_grant_to_its_release():
    found = timeline.holds(held(0, 4, A, 0, seq=1) + held(5, 8, B, 0, seq=2))
    assert [(hold.job_id, hold.start_s, hold.end_s) for hold in found] == [(A, 0, 4), (B, 5, 8)]


def test_a_release_of_another_grant_does_not_close_a_hold():
    grant = held(0, 4, A, 0, seq=2)[0]
    stale = held(0, 1, A, 0, seq=1)[1]
    assert timeline.holds([grant, stale])[0].end_s is None


def test_iteration_seconds_are_whole_periods_without_the_warm_up():
    ends = [event(EventType.ITERATION_END, at_s, A, i) for i, at_s in enumerate([9, 15, 20, 26])]
    assert timeline.iteration_seconds(ends, skip=1) == {A: [6, 5, 6]}
    assert timeline.iteration_seconds(ends, skip=2) == {A: [5, 6]}


def test_grant_latency_counts_from_the_release_when_the_job_was_waiting():
    events = [
        *held(0, 4, A, 0, seq=1),
        event(EventType.GRANT, 4.002, B, 0, Phase.ROLLOUT, "r/0", epoch=1, seq=2),
        event(EventType.PHASE_START, 4.105, B, 0, Phase.ROLLOUT, wait_s=3.0, switch_s=0.1),
    ]
    assert timeline.grant_latencies_s(events) == [pytest.approx(0.005)]


def test_grant_latency_counts_from_readiness_when_the_device_was_free_before():
    events = [
        *held(0, 4, A, 0, seq=1),
        event(EventType.GRANT, 9.001, B, 0, Phase.ROLLOUT, "r/0", epoch=1, seq=2),
        event(EventType.PHASE_START, 9.003, B, 0, Phase.ROLLOUT, wait_s=0.003, switch_s=0.0),
    ]
    assert timeline.grant_latencies_s(events) == [pytest.approx(0.003)]


def test_lanes_show_who_held_a_device_and_where_the_bubble_was():
    found = timeline.holds(held(0, 4, A, 0, seq=1) + held(6, 8, B, 0, seq=2))
    assert timeline.lanes(found, {A: "A", B: "B"}, since_s=0, until_s=10, width=10) == {
        "r/0": "AAAA··BB··"
    }
    assert timeline.busy_fraction(found, since_s=0, until_s=10) == {"r/0": 0.6}


def test_spread_of_nothing_is_none():
    assert timeline.spread([]) is None
    assert timeline.spread([3.0, 1.0, 2.0]) == timeline.Spread(n=3, p50=2.0, p99=3.0, min=1, max=3)
