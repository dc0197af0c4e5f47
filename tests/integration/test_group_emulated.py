"""A whole group through its real processes: emulated jobs, a real server, a real store."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import pytest

from rmux.errors import ConflictError, NotFoundError, UserError
from rmux.events import EventType
from rmux.ids import NodeId
from rmux.job import JobState
from rmux.run import parent, processes, valkey
from rmux.run.trace_check import check
from rmux.store import groups, jobs, pools

pytestmark = pytest.mark.redis

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

GROUP, HOST = live_group.GROUP, live_group.HOST
CLEAN = {"processes": [], "files": [], "shm": []}


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()


def two_jobs(group, *, iterations: int = 5):
    group.add_nodes()
    return [group.add_job(name, iterations=iterations) for name in ("a", "b")]


def iteration_s(group, job_id):
    found = [
        event.data["iteration_s"]
        for event in group.events(EventType.ITERATION_END)
        if event.job_id == job_id and event.iteration >= 2
    ]
    return statistics.median(found)


def test_two_jobs_share_two_nodes_to_their_ends_hardly_slower_than_alone(group):
    a, b = two_jobs(group, iterations=8)
    assert group.up().wait(60) == 0, group.logs()
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert group.job(a).iteration == 8
    assert group.job(a).reward_last > group.job(a).reward_first
    assert check(group.events()) == []
    assert group.leftovers() == CLEAN
    with group.store.read() as conn:
        assert groups.get(conn, GROUP).nodes == (), "the nodes are free again"
    # Alone an iteration takes 0.41 s; two that take turns fill each other's bubbles.
    for job_id in (a, b):
        assert iteration_s(group, job_id) < 1.6 * 0.41


def test_jobs_of_several_devices_on_partly_shared_nodes_never_block_each_other(group):
    group.add_nodes(rollout=3, train=1, devices=2)
    wide = group.add_job(
        "wide", rollout=("roll0/0", "roll1/0"), train=("train0/0", "train0/1"), rollout_s=0.1
    )
    left = group.add_job("left", rollout=("roll1/0", "roll2/0"), train=("train0/0",), train_s=0.1)
    right = group.add_job("right", rollout=("roll2/0", "roll0/0"), train=("train0/1",))
    assert group.up().wait(60) == 0, group.logs()
    assert set(group.states().values()) == {JobState.SUCCEEDED}
    assert check(group.events()) == []
    assert {group.job(job).iteration for job in (wide, left, right)} == {5}


def test_down_puts_the_jobs_back_and_the_next_up_resumes_them(group):
    a, b = two_jobs(group, iterations=12)
    child = group.up()
    group.wait_iteration(a, 3)
    with group.store.write() as conn:
        groups.set_desired(conn, GROUP, "down")
    assert child.wait(20) == 0, group.logs()
    assert group.states() == {a: JobState.PLACED, b: JobState.PLACED}
    assert group.leftovers() == CLEAN
    reached = group.job(a).iteration
    assert 3 <= reached < 12
    assert group.up().wait(60) == 0, group.logs()
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert check(group.events()) == []
    resumed = [e.iteration for e in group.events(EventType.PHASE_START) if e.source == f"{a}/2"]
    assert resumed[0] == reached


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_group_in_order_and_says_so_at_once(group, signum, status):
    a, b = two_jobs(group, iterations=50)
    child = group.up()
    group.wait_iteration(a, 2)
    child.send_signal(signum)
    said = group.wait(lambda: "stopping group" in (group.run_dir / "up.log").read_text())
    assert said
    assert child.wait(20) == status, group.logs()
    assert group.states() == {a: JobState.PLACED, b: JobState.PLACED}
    assert group.leftovers() == CLEAN


def test_a_second_ctrl_c_kills_what_does_not_end(group):
    a, _ = two_jobs(group, iterations=50)
    child = group.up()
    group.wait_iteration(a, 1)
    os.kill(group.pid("driver", job=a), signal.SIGSTOP)
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None, "it still waits for the driver that does not answer"
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 137
    assert group.leftovers() == CLEAN


def test_a_killed_parent_ends_its_group_in_order_and_the_next_one_resumes(group):
    a, b = two_jobs(group, iterations=12)
    child = group.up()
    group.wait_iteration(a, 2)
    child.kill()
    child.wait()
    group.wait(lambda: not processes.tagged(group.tag), what="the group has ended")
    assert [p.name for p in Path("/dev/shm").iterdir() if group.tag in p.name] == []
    assert group.up().wait(60) == 0, group.logs()
    assert group.leftovers() == CLEAN
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert check(group.events()) == []


def test_after_a_crash_of_everything_but_the_drivers_a_sweep_leaves_nothing(group):
    a, _ = two_jobs(group, iterations=50)
    group.up("--lease-s", "60")
    group.wait_iteration(a, 1)
    with pytest.raises(ConflictError, match="is up"):
        parent.sweep(group.url, GROUP, host=HOST)
    drivers = {event.data["pid"] for event in group.changes("driver", "started")}
    running = processes.tagged(group.tag)
    segment = Path("/dev/shm") / f"{group.tag}-{a}-a001-weights"
    segment.write_bytes(b"x")
    for child in group.parents:
        child.kill()
    for process in running:
        if process.pid not in drivers:
            os.kill(process.pid, signal.SIGKILL)
    group.parents[0].wait()
    group.wait(lambda: len(processes.tagged(group.tag)) == 2, what="only drivers are left")
    assert parent.sweep(group.url, GROUP, host=HOST) == 2
    assert group.leftovers() == CLEAN


def test_a_second_up_of_a_running_group_is_a_success_that_changes_nothing(group):
    a, _ = two_jobs(group, iterations=50)
    assert not parent.is_up(group.url, GROUP, host=HOST)
    group.up()
    group.wait_iteration(a, 1)
    assert parent.is_up(group.url, GROUP, host=HOST)
    before = len(group.changes("controller", "started"))
    assert group.up().wait(10) == 0
    assert len(group.changes("controller", "started")) == before
    assert group.parents[0].poll() is None


def test_a_detached_parent_returns_when_the_group_is_ready(group):
    two_jobs(group, iterations=4)
    options = {"host": HOST, "run_dir": group.run_dir, "heartbeat_s": 0.2}
    assert parent.detach(group.url, GROUP, **options)
    assert any(e.data.get("change") == "ready" for e in group.events(EventType.CONTROLLER))
    assert not parent.detach(group.url, GROUP, **options), "it was up already"
    group.wait(lambda: set(group.states().values()) == {JobState.SUCCEEDED}, timeout_s=40)
    group.wait(lambda: not parent.is_up(group.url, GROUP, host=HOST))
    group.wait(lambda: not processes.tagged(group.tag))


def test_a_job_that_joins_later_gets_its_runner_and_its_turns(group):
    group.add_nodes(rollout=2)
    a = group.add_job("a", iterations=15)
    child = group.up()
    group.wait_iteration(a, 2)
    b = group.add_job("b", iterations=4, rollout=("roll1/0",))
    assert child.wait(60) == 0, group.logs()
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert check(group.events()) == []
    assert [e.data["role"] for e in group.changes("runner", "started")].count("runner roll1") == 1


def test_a_pending_job_is_placed_by_the_running_controller_and_runs(group):
    group.add_nodes()
    a = group.add_job("a", iterations=25)
    child = group.up()
    group.wait_iteration(a, 1)
    b = group.add_job("b", iterations=3, placed=False)
    assert group.states()[b] is JobState.PENDING
    assert child.wait(60) == 0, group.logs()
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert check(group.events()) == []


def test_a_job_is_cancelled_and_paused_through_the_store(group):
    a, b = two_jobs(group, iterations=500)
    child = group.up()
    group.wait_iteration(b, 1)
    with group.store.write() as conn:
        jobs.set_desired(conn, a, "pause")
    group.wait(lambda: group.states()[a] is JobState.PAUSED, what="paused")
    with group.store.write() as conn:
        jobs.set_desired(conn, a, "cancel")
    group.wait(lambda: group.states()[a] is JobState.CANCELLED, what="cancelled")
    with group.store.write() as conn:
        jobs.set_desired(conn, b, "cancel-now")
    asked_s = time.monotonic()
    assert child.wait(20) == 0, group.logs()
    assert time.monotonic() - asked_s < 8
    assert group.states()[b] is JobState.CANCELLED
    assert group.leftovers() == CLEAN


def test_a_group_that_is_not_there_or_not_all_here_is_refused(group):
    group.add_nodes()
    options = {"host": HOST, "run_dir": group.run_dir}
    with pytest.raises(NotFoundError):
        parent.run(group.url, "g-none", **options)
    group.add_job("a")
    with pytest.raises(UserError, match="no node on elsewhere"):
        parent.run(group.url, GROUP, host="elsewhere", run_dir=group.run_dir)
    with group.store.write() as conn:
        cluster = pools.load(conn)
        roll, train = cluster.pools
        moved = dataclasses.replace(roll.nodes[0], id=NodeId("far"), host="elsewhere")
        far = dataclasses.replace(roll, nodes=(*roll.nodes, moved))
        pools.save(conn, dataclasses.replace(cluster, pools=(far, train)))
    group.add_job("b", rollout=("far/0",))
    with pytest.raises(UserError, match="spans the hosts elsewhere, test-host"):
        parent.run(group.url, GROUP, **options)


def test_the_sockets_of_two_stores_never_meet(group, tmp_path):
    other = parent.group_tag(f"sqlite:///{tmp_path}/other.db", GROUP, host=HOST)
    assert valkey.socket_url(group.tag) != valkey.socket_url(other)
    for tag in (group.tag, other):
        valkey.temp_folder(tag).rmdir()
