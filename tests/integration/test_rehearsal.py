"""`rmux group up --emulate`: the real processes, a copy of the store, no job touched."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import Engine
from rmux.store import pools

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

GROUP = live_group.GROUP


@pytest.fixture
def group(tmp_path):
    """Two jobs for real engines, and one of the nodes on another host."""
    opened = live_group.open_group(tmp_path)
    opened.add_nodes()
    with opened.store.write() as conn:
        cluster = pools.load(conn)
        roll, train = cluster.pools
        far = dataclasses.replace(train, nodes=(dataclasses.replace(train.nodes[0], host="far"),))
        pools.save(conn, dataclasses.replace(cluster, pools=(roll, far)))
    opened.add_job("a", rollout_s=0.4, train_s=0.2, engine=Engine.REAL)
    opened.add_job("b", rollout_s=0.4, train_s=0.2, engine=Engine.REAL)
    yield opened
    opened.close()


def content(group):
    with sqlite3.connect(group.store.path) as found:
        lines = [*found.iterdump()]
    found.close()
    return lines


def rehearse(group, *args):
    # What it leaves in the temp folder is found there.
    child = group.rmux("group", "up", GROUP, "--emulate", *args, TMPDIR=str(group.run_dir.parent))
    stdout, stderr = child.communicate(timeout=60)
    return child.returncode, stdout, stderr


def test_a_rehearsal_sets_period_and_slowdowns_against_the_plan_and_stores_nothing(group):
    before = content(group)
    code, stdout, stderr = rehearse(group, "--json", "--rounds", "4")
    assert code == 0, stderr
    found = json.loads(stdout)
    assert (found["schema"], found["rounds"], found["problems"]) == ("rmux.rehearsal/v1", 4, [])
    assert found["planned_period_s"] == pytest.approx(0.8)
    assert 0.8 <= found["period_s"] < 1.4
    assert [member["name"] for member in found["members"]] == ["a", "b"]
    for member in found["members"]:
        assert member["planned_slowdown"] == pytest.approx(0.8 / 0.61)
        assert member["slowdown"] == pytest.approx(member["period_s"] / 0.61)
        assert (member["error"], member["max_slowdown"]) == ("", 2.0)
    assert content(group) == before
    assert not [path for path in group.run_dir.parent.glob("rmux-*") if any(path.rglob("*"))]


def test_people_read_the_plan_beside_what_came_out(group):
    code, stdout, stderr = rehearse(group, "--rounds", "1")
    assert code == 0
    assert "is rehearsed on emulated engines for 3 rounds, about 2.4 s" in stderr
    assert "period  0.8 s planned, " in stdout
    assert " 1.31  " in stdout
    assert "sound" in stdout


def test_ctrl_c_ends_a_rehearsal_and_leaves_nothing(group):
    before = content(group)
    child = group.rmux(
        "group", "up", GROUP, "--emulate", "--rounds", "500", TMPDIR=str(group.run_dir.parent)
    )
    copy = group.wait(lambda: [*group.run_dir.parent.glob("rmux-rehearsal-*/runs/g-0001/*")])
    assert copy
    child.send_signal(signal.SIGINT)
    stdout, _ = child.communicate(timeout=30)
    assert (child.returncode, stdout) == (130, "")
    assert content(group) == before
    assert not [path for path in group.run_dir.parent.glob("rmux-*") if any(path.rglob("*"))]


@pytest.mark.parametrize("args", [["--stay"], ["--detach"]])
def test_a_rehearsal_goes_with_no_other_way_of_going_up(group, args):
    code, _, stderr = rehearse(group, *args)
    assert code == 2
    assert "exclude each other" in stderr
    assert group.events(EventType.PROCESS) == []


def test_rounds_are_of_a_rehearsal(group):
    child = group.rmux("group", "up", GROUP, "--rounds", "2")
    _, stderr = child.communicate(timeout=30)
    assert child.returncode == 2
    assert "--rounds is of a rehearsal" in stderr
