"""`rmux group up --all`: one command serves every group of the host."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from rmux.job import JobState
from rmux.run import parent, processes
from rmux.store import groups, pools

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

HOST = live_group.HOST
CLEAN = {"processes": [], "files": [], "shm": []}
SIDE = {"rollout": ("roll1/0",), "train": ("train1/0",), "group": "g-0002"}
QUICK = {"iterations": 2, "rollout_s": 0.05, "train_s": 0.05}


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    opened.add_nodes(rollout=2, train=2)
    yield opened
    opened.close()


def ends(child, *, code=0, timeout_s=60):
    stdout, stderr = child.communicate(timeout=timeout_s)
    assert child.returncode == code, stderr
    return stdout, stderr


def all_groups(group):
    with group.store.read() as conn:
        return [found.id for found in groups.ls(conn, all=True)]


def is_up(group, group_id):
    return parent.is_up(group.url, group_id, host=HOST)


def test_every_group_is_served_also_a_later_one_and_the_end_is_the_last_jobs(group):
    child = group.rmux("group", "up", "--all")
    assert "no group has a job for test-host yet; waiting" in child.stderr.readline()
    a = group.add_job("a", **QUICK)
    group.wait(lambda: is_up(group, "g-0001"), what="the first group is up")
    b = group.add_job("b", **QUICK, **SIDE)
    _, stderr = ends(child)
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert stderr.splitlines()[-1] == "rmux: every group of this host is done"
    assert [group.leftovers(one) for one in all_groups(group)] == [CLEAN, CLEAN]


def test_a_job_that_waits_for_the_last_one_to_end_gets_a_group_and_is_run(group):
    a = group.add_job("a", **{**QUICK, "iterations": 4})
    with group.store.write() as conn:
        for node in ("roll1", "train1"):
            pools.set_drained(conn, node, "kept free")
    long = group.add_job("long", rollout_s=2.0, train_s=0.05, iterations=1, slo=1.0, placed=False)
    ends(group.rmux("group", "up", "--all"))
    assert group.states() == {a: JobState.SUCCEEDED, long: JobState.SUCCEEDED}
    assert len(all_groups(group)) == 2


def test_ctrl_c_takes_all_groups_down_in_order(group):
    jobs = [group.add_job("a", iterations=500), group.add_job("b", iterations=500, **SIDE)]
    child = group.rmux("group", "up", "--all")
    for job in jobs:
        group.wait_iteration(job, 1)
    child.send_signal(signal.SIGINT)
    _, stderr = ends(child, code=130, timeout_s=30)
    assert "stopping 2 groups; once more to kill them" in stderr
    assert set(group.states().values()) == {JobState.PLACED}
    assert [group.leftovers(one) for one in all_groups(group)] == [CLEAN, CLEAN]


def test_a_second_ctrl_c_kills_what_does_not_end(group):
    job = group.add_job("a", iterations=500)
    child = group.rmux("group", "up", "--all")
    group.wait_iteration(job, 1)
    os.kill(group.pid("driver", job=job), signal.SIGSTOP)
    child.send_signal(signal.SIGINT)
    while "once more" not in child.stderr.readline():
        pass
    child.send_signal(signal.SIGINT)
    ends(child, code=137, timeout_s=30)
    assert group.leftovers() == CLEAN


def test_killed_outright_it_leaves_every_group_to_end_in_order(group):
    job = group.add_job("a", iterations=500)
    child = group.rmux("group", "up", "--all")
    group.wait_iteration(job, 1)
    child.kill()
    group.wait(lambda: not processes.tagged(group.tag), what="the group has ended")
    assert group.states() == {job: JobState.PLACED}


def test_a_group_that_is_taken_down_stays_down_and_the_others_go_on(group):
    a = group.add_job("a", iterations=500)
    b = group.add_job("b", iterations=500, **SIDE)
    child = group.rmux("group", "up", "--all")
    for job in (a, b):
        group.wait_iteration(job, 1)
    ends(group.rmux("group", "down", "g-0001", "--yes"))
    group.wait(lambda: group.states()[a] is JobState.PLACED, what="the first group is down")
    ends(group.rmux("job", "cancel", "--now", b))
    _, stderr = ends(child)
    assert stderr.count("group g-0001 comes up") == 1
    assert group.states() == {a: JobState.PLACED, b: JobState.CANCELLED}
    assert not is_up(group, "g-0001")


def test_a_parent_that_dies_is_replaced(group):
    job = group.add_job("a", iterations=500)
    child = group.rmux("group", "up", "--all")
    group.wait_iteration(job, 1)
    pid = parent.served(group.url, "g-0001", host=HOST).pid
    os.kill(pid, signal.SIGKILL)
    reached = group.job(job).iteration
    group.wait_iteration(job, reached + 2)
    assert parent.served(group.url, "g-0001", host=HOST).pid != pid
    child.terminate()
    _, stderr = ends(child, code=143)
    assert "group g-0001 did not stay up (killed by SIGKILL)" in stderr
    assert group.leftovers() == CLEAN


def test_a_second_one_says_so_and_ends(group):
    job = group.add_job("a", iterations=500)
    first = group.rmux("group", "up", "--all")
    group.wait_iteration(job, 1)
    _, stderr = ends(group.rmux("group", "up", "--all"))
    assert "is served already" in stderr
    assert first.poll() is None
    first.terminate()
    ends(first, code=143)


@pytest.mark.parametrize("args", [["g-0001", "--all"], [], ["--all", "--detach"]])
def test_one_group_and_all_exclude_each_other(group, args):
    _, stderr = ends(group.rmux("group", "up", *args), code=2)
    assert "--all" in stderr
