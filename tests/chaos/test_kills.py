"""kill -9 of each process of a running group, and an emptied channel: nobody else loses anything.

Each test logs how long the repair took: pytest -o log_cli=true -o log_cli_level=INFO.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time

import pytest
import redis

from rmux.events import EventType
from rmux.job import JobState
from rmux.run import processes, valkey
from rmux.run.trace_check import check

pytestmark = [pytest.mark.redis, pytest.mark.slow]

log = logging.getLogger(__name__)

CLEAN = {"processes": [], "files": [], "shm": []}
ITERATIONS = 14


@pytest.fixture
def running(group):
    """Two jobs on one pair of nodes, a few iterations in."""
    group.add_nodes()
    group.jobs = [
        group.add_job(name, iterations=ITERATIONS, rollout_s=0.15, train_s=0.15)
        for name in ("a", "b")
    ]
    group.child = group.up()
    for job in group.jobs:
        group.wait_iteration(job, 3)
    return group


def kill(pid: int) -> float:
    """SIGKILL; returns the boot-time clock, seconds."""

    os.kill(pid, signal.SIGKILL)
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def finish(group) -> None:
    """All end well, the trace is clean, nothing is left."""
    assert group.child.wait(60) == 0, group.logs()
    assert set(group.states().values()) == {JobState.SUCCEEDED}, group.logs()
    assert check(group.events()) == []
    for job_id in group.jobs:
        assert group.job(job_id).iteration == ITERATIONS
    assert group.leftovers() == CLEAN


def lost_iterations(group, job_id) -> int:
    """Iterations that were run more than once."""
    ends = [e.iteration for e in group.events(EventType.ITERATION_END) if e.job_id == job_id]
    assert set(ends) == set(range(ITERATIONS))
    starts = [
        e.iteration
        for e in group.events(EventType.PHASE_START)
        if e.job_id == job_id and e.phase == "rollout"
    ]
    return len(starts) - len(set(starts))


def attempts(group, job_id) -> int:
    return group.job(job_id).attempt


def repaired_s(group, killed_s: float, kind: EventType, **data) -> float:
    """Seconds from the kill to the first event that shows the repair."""
    found = [
        event.at_s
        for event in group.events(kind)
        if event.at_s > killed_s
        and all(str(event.data.get(key, "")).startswith(value) for key, value in data.items())
    ]
    return min(found) - killed_s


def longest_gap_s(group, job_id, since_s: float) -> float:
    """Longest time between two finished iterations after the kill."""
    ends = sorted(e.at_s for e in group.events(EventType.ITERATION_END) if e.job_id == job_id)
    pairs = itertools.pairwise(ends)
    return max(after - before for before, after in pairs if after > since_s)


def test_a_killed_driver_is_started_again_and_loses_at_most_one_iteration(running):
    a, b = running.jobs
    killed_s = kill(running.pid("driver", job=a))
    finish(running)
    assert (attempts(running, a), attempts(running, b)) == (2, 1)
    assert lost_iterations(running, a) <= 1
    assert lost_iterations(running, b) == 0
    lost = [e for e in running.events(EventType.JOB_STATE) if e.data["state"] == "lost"]
    assert "SIGKILL" in lost[0].data["error"]
    restarted_s = repaired_s(running, killed_s, EventType.PROCESS, role="driver", change="started")
    noticed_s = lost[0].at_s - killed_s
    gap_s = longest_gap_s(running, b, killed_s)
    log.info(
        "driver: noticed %.3f s, restarted %.3f s, b waited %.2f s", noticed_s, restarted_s, gap_s
    )
    assert noticed_s < 2.0
    assert gap_s < 3.0


@pytest.mark.parametrize("node", ["roll0", "train0"])
def test_a_killed_runner_comes_back_to_its_drivers_and_no_job_notices(running, node):
    killed_s = kill(running.pid(f"runner {node}"))
    finish(running)
    assert [attempts(running, job) for job in running.jobs] == [1, 1]
    assert [lost_iterations(running, job) for job in running.jobs] == [0, 0]
    assert len(running.changes(f"runner {node}", "restarted")) == 1
    back_s = repaired_s(
        running, killed_s, EventType.PROCESS, role=f"runner {node}", change="restarted"
    )
    gap_s = max(longest_gap_s(running, job, killed_s) for job in running.jobs)
    log.info("runner %s: restarted %.3f s, longest iteration %.2f s", node, back_s, gap_s)
    if node == "train0":
        assert len(running.changes("driver", "adopted")) == 2


def test_a_killed_controller_is_replaced_and_no_job_notices(running):
    killed_s = kill(running.pid("controller"))
    finish(running)
    assert [attempts(running, job) for job in running.jobs] == [1, 1]
    assert [lost_iterations(running, job) for job in running.jobs] == [0, 0]
    epochs = [e.data["epoch"] for e in running.events(EventType.CONTROLLER)]
    assert epochs == [1, 2]
    ready_s = repaired_s(running, killed_s, EventType.CONTROLLER, change="ready")
    gap_s = max(longest_gap_s(running, job, killed_s) for job in running.jobs)
    log.info("controller: ready %.3f s, longest iteration %.2f s", ready_s, gap_s)
    assert ready_s < 5.0, "a dead holder's lease is broken at once, not waited for"


def test_a_killed_channel_server_comes_back_at_its_path_and_no_job_notices(running):
    killed_s = kill(running.pid("channel server"))
    finish(running)
    assert [attempts(running, job) for job in running.jobs] == [1, 1]
    assert [lost_iterations(running, job) for job in running.jobs] == [0, 0]
    back_s = repaired_s(running, killed_s, EventType.PROCESS, role="channel", change="restarted")
    gap_s = max(longest_gap_s(running, job, killed_s) for job in running.jobs)
    log.info("channel server: restarted %.3f s, longest iteration %.2f s", back_s, gap_s)


def test_an_emptied_channel_costs_a_heartbeat(running):
    client = redis.Redis.from_url(valkey.socket_url(running.tag))
    for _ in range(10):
        client.flushall()
        running.wait(lambda: client.dbsize() > 0)
    client.close()
    finish(running)
    assert [attempts(running, job) for job in running.jobs] == [1, 1]
    assert [lost_iterations(running, job) for job in running.jobs] == [0, 0]


def test_controller_and_runners_killed_together_find_every_grant_again(running):
    pids = [running.pid(role) for role in ("controller", "runner roll0", "runner train0")]
    for pid in pids:
        killed_s = kill(pid)
    finish(running)
    assert [attempts(running, job) for job in running.jobs] == [1, 1]
    assert [lost_iterations(running, job) for job in running.jobs] == [0, 0]
    gap_s = max(longest_gap_s(running, job, killed_s) for job in running.jobs)
    log.info("controller and runners: longest iteration %.2f s", gap_s)


def test_a_driver_that_hangs_on_a_device_is_fenced_and_the_others_go_on(group):
    group.add_nodes()
    group.jobs = [
        group.add_job(name, iterations=ITERATIONS, rollout_s=0.15, train_s=0.15)
        for name in ("a", "b")
    ]
    a, b = group.jobs
    group.child = group.up("--fence-floor-s", "2", "--fence-grace-s", "0.5")
    for job in (a, b):
        group.wait_iteration(job, 2)
    driver = group.pid("driver", job=a)
    os.kill(driver, signal.SIGSTOP)
    hung_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    finish(group)
    assert (attempts(group, a), attempts(group, b)) == (2, 1)
    assert lost_iterations(group, b) == 0
    (fenced,) = group.changes("driver", "fenced")
    assert fenced.job_id == a
    log.info("hung driver: fenced %.2f s after it stopped", fenced.at_s - hung_s)
    (lost,) = (e for e in group.events(EventType.JOB_STATE) if e.data["state"] == "lost")
    assert "for more than 2 s" in lost.data["error"]


def test_a_job_that_dies_again_and_again_is_given_up_with_its_last_words(group):
    group.add_nodes()
    doomed = group.add_job("a", iterations=200, restart_limit=1)
    other = group.add_job("b", iterations=12)
    child = group.up()
    for attempt in (1, 2):
        group.wait(
            lambda n=attempt: any(
                e.data["attempt"] == n and e.job_id == doomed
                for e in group.events(EventType.PHASE_START)
            )
        )
        kill(group.pid("driver", job=doomed))
    group.wait(lambda: group.states()[doomed] is JobState.FAILED)
    assert child.wait(60) == 0, group.logs()
    assert group.states()[other] is JobState.SUCCEEDED
    job = group.job(doomed)
    assert "SIGKILL" in job.error
    assert "2 times" in job.reason.message
    assert job.ended_at is not None
    assert check(group.events()) == []
    assert processes.tagged(group.tag) == []
