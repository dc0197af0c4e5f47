"""Stored rounds that change while a group runs, and their rehearsal, through the real processes."""

from __future__ import annotations

import importlib.util
import json
import queue
import sys
import threading
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import Phase
from rmux.run.controller.store_side import follow_group
from rmux.run.trace_check import check
from rmux.store import jobs, revision, schema

pytestmark = pytest.mark.redis

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

GROUP = live_group.GROUP
SHORT = {"rollout_s": 0.05, "train_s": 0.05}


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    opened.add_nodes()
    yield opened
    opened.close()


def set_round(group, turns):
    """Another round for the same members at the same places."""
    with group.store.write() as conn:
        changed = schema.groups.update().where(schema.groups.c.id == GROUP)
        conn.execute(changed.values(turns=list(turns)))
        revision.bump(conn)


def rollouts(group):
    """Whose rollouts were granted, in order."""
    return [
        event.job_id
        for event in group.events(EventType.GRANT)
        if event.phase is Phase.ROLLOUT and event.device == "roll0/0"
    ]


def goes_round(grants, turns):
    """Whether the last grants go through whole rounds, wherever the first of them begins."""
    count = 3 * len(turns)
    last = grants[-count:]
    return len(last) == count and any(
        last == [turns[(start + place) % len(turns)] for place in range(count)]
        for start in range(len(turns))
    )


def test_a_new_stored_round_is_taken_up_while_the_group_runs(group):
    a, b = (group.add_job(name, iterations=500, **SHORT) for name in ("a", "b"))
    child = group.up()
    group.wait(lambda: goes_round(rollouts(group), [a, b]), what="one turn each")
    set_round(group, [a, b, a])
    group.wait(lambda: goes_round(rollouts(group), [a, b, a]), what="two turns of a")
    c = group.add_job("c", iterations=500, turns=("a", "c", "c", "b"), **SHORT)
    group.wait(lambda: goes_round(rollouts(group), [a, c, c, b]), what="the joiner at its place")
    with group.store.write() as conn:
        jobs.set_desired(conn, c, "cancel-now")
    group.wait(lambda: goes_round(rollouts(group), [a, b]), what="the rest of it")
    set_round(group, [b, b, b, a])
    group.wait(lambda: goes_round(rollouts(group), [b, b, b, a]), what="three turns of b")
    with group.store.write() as conn:
        for job in (a, b):
            jobs.set_desired(conn, job, "cancel-now")
    assert child.wait(20) == 0, group.logs()
    assert check(group.events()) == []


def test_a_controller_hears_of_new_turns_when_nothing_else_changed(group):
    a, b = (group.add_job(name) for name in ("a", "b"))
    posted, stopped = queue.Queue(), threading.Event()
    follower = threading.Thread(
        target=follow_group,
        args=(group.store, GROUP),
        kwargs={"post": posted.put, "stopped": stopped},
    )
    follower.start()
    try:
        assert posted.get(timeout=10).turns == ()
        set_round(group, [a, b, a])
        assert posted.get(timeout=10).turns == (a, b, a)
    finally:
        stopped.set()
        follower.join()


def test_a_rehearsal_runs_the_stored_round_and_tells_each_job_its_own_iterations(group):
    group.add_job("a", rollout_s=0.1, train_s=0.1)
    group.add_job("b", rollout_s=0.1, train_s=0.1, turns=("a", "b", "a"))
    child = group.rmux("group", "up", GROUP, "--emulate", "--json", "--rounds", "4")
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    found = json.loads(stdout)
    one, other = found["members"]
    # a's two iterations take 0.21 s each, one of them beside b's.
    assert found["planned_period_s"] == pytest.approx(0.42)
    assert one["planned_slowdown"] == pytest.approx(1.0)
    assert other["planned_slowdown"] == pytest.approx(2.0)
    assert found["problems"] == []
    assert other["period_s"] == pytest.approx(2 * one["period_s"], rel=0.25)
    assert 0.4 < found["period_s"] < 0.8
