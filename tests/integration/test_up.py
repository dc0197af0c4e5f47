"""`rmux group up` as it is typed: when it waits, when it ends, what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import JobState
from rmux.run import parent
from rmux.store import jobs, schema

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

GROUP, HOST = live_group.GROUP, live_group.HOST
CLEAN = {"processes": [], "files": [], "shm": []}
QUICK = {"rollout_s": 0.05, "train_s": 0.05}


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    opened.add_nodes()
    yield opened
    opened.close()


def ends(child, *, code=0):
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == code, stderr
    return stdout, stderr


def test_a_group_without_a_job_waits_for_its_first_and_ends_with_its_last(group):
    with group.store.write() as conn:
        row = {"id": GROUP, "desired": "run", "rotation_version": 1}
        conn.execute(schema.groups.insert().values(**row, created_at=datetime.now(UTC)))
    child = group.rmux("group", "up", GROUP)
    assert child.stderr.readline() == f"{GROUP} has no job yet and waits for one\n"
    group.wait(lambda: group.events(EventType.CONTROLLER), what="the controller is ready")
    assert child.poll() is None
    first = group.add_job("first", iterations=2, **QUICK)
    stdout, _ = ends(child)
    assert stdout == f"{GROUP} IDLE\n"
    assert group.states() == {first: JobState.SUCCEEDED}
    assert group.leftovers() == CLEAN


def test_a_group_whose_jobs_have_ended_is_done_at_once(group):
    job = group.add_job("a")
    with group.store.write() as conn:
        jobs.set_state(conn, job, JobState.CANCELLED)
    _, stderr = ends(group.rmux("group", "up", GROUP))
    assert "all its jobs have ended; --stay waits" in stderr
    assert group.events(EventType.PROCESS) == []


def test_with_stay_it_goes_on_for_later_jobs_until_it_is_told_to_go_down(group):
    a = group.add_job("a", iterations=2, **QUICK)
    child = group.rmux("group", "up", GROUP, "--stay")
    group.wait(lambda: group.states()[a] is JobState.SUCCEEDED, what="the first job")
    b = group.add_job("b", iterations=2, **QUICK)
    group.wait(lambda: group.states()[b] is JobState.SUCCEEDED, what="the second job")
    assert child.poll() is None
    ends(group.rmux("group", "down", GROUP))
    ends(child)
    assert group.leftovers() == CLEAN


def test_a_second_up_names_the_first_and_changes_nothing(group):
    group.add_job("a", iterations=500)
    begun = datetime.now(UTC)
    first = group.rmux("group", "up", GROUP)
    group.wait(lambda: group.events(EventType.CONTROLLER), what="it is up")
    stdout, stderr = ends(group.rmux("group", "up", GROUP, "--json"))
    assert f"is already up, pid {first.pid}, since " in stderr
    assert json.loads(stdout)["status"] == "up"
    since = parent.served(group.url, GROUP, host=HOST).since
    assert abs((since - begun).total_seconds()) < 5
    assert first.poll() is None
    assert len(group.changes("controller", "started")) == 1


def test_up_of_a_group_that_is_stopping_waits_and_brings_it_up_again(group):
    a = group.add_job("a", iterations=500)
    first = group.rmux("group", "up", GROUP)
    group.wait_iteration(a, 1)
    driver = group.pid("driver", job=a)
    os.kill(driver, signal.SIGSTOP)
    ends(group.rmux("group", "down", GROUP, "--yes"))
    second = group.rmux("group", "up", GROUP)
    assert f"is stopping, pid {first.pid}" in second.stderr.readline()
    os.kill(driver, signal.SIGCONT)
    ends(first)
    group.wait(lambda: len(group.changes("controller", "started")) == 2, what="up again")
    reached = group.job(a).iteration
    group.wait_iteration(a, reached + 1)
    assert second.poll() is None
    second.terminate()
    begun_s = time.monotonic()
    ends(second, code=143)
    assert time.monotonic() - begun_s < 10
    assert group.leftovers() == CLEAN


def test_a_child_that_dies_is_told_with_its_log(group):
    group.add_job("a", iterations=500)
    child = group.rmux("group", "up", GROUP)
    group.wait(lambda: group.events(EventType.CONTROLLER), what="it is up")
    os.kill(group.pid("controller"), signal.SIGKILL)
    os.kill(group.pid("runner roll0"), signal.SIGKILL)
    for role in ("runner", "controller"):
        group.wait(lambda role=role: group.changes(role, "restarted"), what=f"{role} again")
    child.terminate()
    _, stderr = ends(child, code=143)
    for role, log in (("controller", "controller.log"), ("runner roll0", "runner-roll0.log")):
        assert f"rmux: {role} died (killed by SIGKILL) and is started again; see " in stderr
        assert f"{group.run_dir}/{GROUP}/{log}\n" in stderr
        assert (group.run_dir / GROUP / log).exists()


def test_a_hangup_that_comes_twice_still_stops_in_order(group):
    """A parent that is killed sends one for each of its threads."""
    a = group.add_job("a", iterations=500)
    child = group.rmux("group", "up", GROUP)
    group.wait_iteration(a, 1)
    for _ in range(2):
        child.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    ends(child, code=129)
    assert group.states() == {a: JobState.PLACED}
    assert group.leftovers() == CLEAN


def test_a_deadline_stops_the_group_in_order(group):
    job = group.add_job("a", iterations=500, **QUICK)
    _, stderr = ends(group.rmux("group", "up", GROUP, "--timeout", "6s"), code=124)
    assert "stopping group" in stderr
    assert group.states() == {job: JobState.PLACED}
    assert group.job(job).iteration > 0
    assert group.leftovers() == CLEAN


def test_of_two_that_come_up_at_once_one_serves_and_the_other_says_who(group):
    group.add_job("a", iterations=60, **QUICK)
    children = [group.rmux("group", "up", GROUP) for _ in range(3)]
    said = [ends(child)[1] for child in children]
    assert sum("comes up on" in text for text in said) == 1
    assert sum("is already up, pid" in text for text in said) == 2
