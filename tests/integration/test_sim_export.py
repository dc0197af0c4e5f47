"""A live store's jobs as a trace: what ran is what is replayed."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import Phase
from rmux.place.period import period
from rmux.place.sim.trace import read
from rmux.place.sim.workload import Drawing, Workload
from rmux.store import groups

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

GROUP = live_group.GROUP


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    opened.add_nodes()
    yield opened
    opened.close()


def rmux(group, *argv, code=0):
    child = group.rmux(*argv)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == code, stderr
    return stdout, stderr


def exported(group, tmp_path, *argv):
    path = tmp_path / "jobs.jsonl"
    _, stderr = rmux(group, "trace", "export", *argv, "--format", "sim", "--out", str(path))
    return path, stderr


def test_jobs_that_never_ran_are_exported_as_planned_and_the_period_is_the_stores(group, tmp_path):
    group.add_job("a", rollout_s=40.0, train_s=20.0, iterations=100, slo=1.5)
    group.add_job("b", rollout_s=20.0, train_s=40.0, iterations=50, slo=1.5)
    path, stderr = exported(group, tmp_path)
    assert "rmux sim run" in stderr
    rows = {row["job"]: row for row in map(json.loads, path.read_text().splitlines())}
    assert (rows["j-a"]["rollout_s"], rows["j-a"]["train_s"], rows["j-a"]["slo"]) == (40, 20, 1.5)
    assert rows["j-b"]["duration_s"] == pytest.approx(50 * 60.01)
    stdout, _ = rmux(
        *(group, "sim", "run", str(path), "--policy", "rollmux-static", "--no-opt", "--json"),
        *("--durations", "work"),
    )
    found = json.loads(stdout)
    with group.store.read() as conn:
        planned_s = period(groups.get(conn, GROUP).members).period_s
    # Both fit the pair of the store; j-a takes its 100 iterations at the group's period.
    assert found["placements"] == {"direct packing": 1, "isolated group": 1}
    assert found["jct_s"]["p95"] == pytest.approx(100 * planned_s, rel=1e-3)
    assert found["slo_attainment"] == 1


def test_what_ran_is_exported_as_it_was_measured(group, tmp_path):
    group.add_job("a", rollout_s=0.3, train_s=0.1, iterations=3)
    group.add_job("b", rollout_s=0.1, train_s=0.2, iterations=3)
    rmux(group, "group", "up", GROUP)
    path, _ = exported(group, tmp_path, GROUP)
    jobs = Workload(read(io.BytesIO(path.read_bytes()), name="jobs"), Drawing())
    assert [job.id for job in jobs] == ["j-a", "j-b"]
    for job, planned in zip(jobs, ((0.3, 0.1), (0.1, 0.2)), strict=True):
        measured = (job.profile.rollout.worst_s, job.profile.train.worst_s)
        ends = [
            event.data["run_s"]
            for event in group.events(EventType.PHASE_END)
            if event.job_id == job.id and event.phase is Phase.ROLLOUT
        ]
        assert min(ends) <= measured[0] <= max(ends) + 0.1
        assert measured == pytest.approx(planned, abs=0.1)
        assert measured != planned
        assert job.spec.iterations == 3
        assert job.duration_s == pytest.approx(3 * job.solo_s)


def test_a_store_without_jobs_to_replay_says_so(group):
    _, stderr = rmux(group, "trace", "export", "--format", "sim", code=4)
    assert "no job with known phase times" in stderr
    _, stderr = rmux(group, "trace", "export", code=2)
    assert "which group?" in stderr
    _, stderr = rmux(group, "trace", "export", "--format", "odd", code=2)
    assert "--format: 'odd' is not one of perfetto, sim" in stderr
