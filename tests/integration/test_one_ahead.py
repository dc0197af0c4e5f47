"""Jobs that are one step off-policy in a live group: real processes, emulated engines."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import JobState, Phase
from rmux.place.period import period
from rmux.run.trace_check import check
from rmux.store import groups

pytestmark = pytest.mark.redis

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()


def instants(group, kind, job, phase):
    """Of the last attempt that came so far, by iteration."""
    own = [e for e in group.events(kind) if e.job_id == job and e.phase is phase]
    return {event.iteration: event.at_s for event in own}


def test_a_pair_with_an_on_policy_job_keeps_the_period_that_was_planned(group):
    """The pair takes 0.35 s a round, the first job's train and sync: alone on-policy it would take
    0.55 s. So its next rollout has to begin before its train is over, in every round but where the
    host was busy; on-policy it never does. No round can be shorter than planned."""
    group.add_nodes()
    ahead = group.add_job(
        "a", rollout_s=0.2, train_s=0.2, sync_s=0.15, iterations=20, max_staleness=1
    )
    plain = group.add_job("b", rollout_s=0.1, train_s=0.1, iterations=20)
    with group.store.read() as conn:
        found = groups.get(conn, live_group.GROUP)
    planned_s = period(found.members).period_s
    assert planned_s == pytest.approx(0.35)
    assert group.up().wait(60) == 0, group.logs()
    assert group.states() == {ahead: JobState.SUCCEEDED, plain: JobState.SUCCEEDED}
    assert check(group.events()) == []
    rollouts = instants(group, EventType.PHASE_START, ahead, Phase.ROLLOUT)
    trains = instants(group, EventType.PHASE_END, ahead, Phase.TRAIN)
    beside = [n for n in range(19) if rollouts[n + 1] < trains[n]]
    assert len(beside) > 19 // 2
    begun = instants(group, EventType.PHASE_START, ahead, Phase.TRAIN)
    synced = instants(group, EventType.PHASE_END, ahead, Phase.SYNC)
    assert all(synced[n] <= begun[n + 1] for n in range(19))
    assert (begun[19] - begun[0]) / 19 > planned_s * 0.999
    # Once both are up they take turns.
    granted = [e.job_id[-1] for e in group.events(EventType.GRANT) if e.phase is Phase.TRAIN]
    turns = "".join(granted)
    assert re.fullmatch("(a*|b*)(ab){12,}(a*|b*)", turns), turns


def test_a_driver_killed_in_both_phases_goes_on_from_its_last_finished_iteration(group):
    group.add_nodes()
    job = group.add_job("a", rollout_s=0.2, train_s=0.3, iterations=8, max_staleness=1)
    child = group.up()
    group.wait_iteration(job, 2)
    os.kill(group.pid("driver", job=job), signal.SIGKILL)
    assert child.wait(60) == 0, group.logs()
    assert group.states() == {job: JobState.SUCCEEDED}
    assert check(group.events()) == []
    ends = [e for e in group.events(EventType.ITERATION_END) if e.job_id == job]
    assert sorted({event.iteration for event in ends}) == [*range(8)]
    assert {event.data["attempt"] for event in ends} == {1, 2}
    again = [
        e.iteration
        for e in group.events(EventType.PHASE_START)
        if e.phase is Phase.ROLLOUT and e.data["attempt"] == 2
    ]
    assert again[0] == max(e.iteration for e in ends if e.data["attempt"] == 1) + 1
