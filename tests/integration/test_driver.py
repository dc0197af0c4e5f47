"""Drivers under the real parent, controller and runners: what a user's script goes through."""

import importlib.util
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rmux.clock import SystemClock
from rmux.errors import UnavailableError
from rmux.events import EventType
from rmux.job import Engine, JobState, Phase
from rmux.run import processes
from rmux.run.probe import GroupProbe
from rmux.store import jobs, pools

OWN = """
import os, pathlib, time
import rmux

folder = pathlib.Path(os.environ["RMUX_RUN_DIR"])
log = (folder / "log").open("a", buffering=1)

def phase(name):
    @rmux.phase(name, wake=lambda: log.write(f"wake {name}\\n"), park=lambda: log.write("park\\n"))
    def run(iteration):
        log.write(f"{name} {iteration} {sorted(os.sched_getaffinity(0))}\\n")
        time.sleep(0.1)
        return {"reward": iteration / 10}
    return run

rollout, train = phase("rollout"), phase("train")
for iteration in range(int(os.environ["RMUX_START_ITERATION"]), int(os.environ["RMUX_ITERATIONS"])):
    rollout(iteration)
    train(iteration)
"""


def load_live_group():
    path = Path(__file__).with_name("live_group.py")
    found = importlib.util.spec_from_file_location("live_group_of_drivers", path)
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


@pytest.fixture
def group(tmp_path):
    group = load_live_group().open_group(tmp_path)
    group.add_nodes()
    yield group
    group.close()


def own_script(group, tmp_path, name, iterations=3):
    """An emulated job of the group, turned into a script with its own engines."""
    (tmp_path / "own.py").write_text(OWN)
    job_id = group.add_job(name, iterations=iterations, rollout_s=0.1, train_s=0.1)
    with group.store.write() as conn:
        job = jobs.get(conn, job_id)
        script = replace(job.spec, engine=Engine.REAL, recipe=None, script=str(tmp_path / "own.py"))
        replace_spec(conn, job_id, script)
    return job_id


def replace_spec(conn, job_id, spec):
    import sqlalchemy as sa

    from rmux.spec import spec_document
    from rmux.store.schema import jobs as table

    row = conn.execute(sa.select(table.c.spec).where(table.c.id == job_id)).scalar_one()
    assert row
    conn.execute(table.update().where(table.c.id == job_id).values(spec=spec_document(spec)))


def ended(group):
    assert group.parents[-1].wait(timeout=60) == 0, group.logs()


def test_two_scripts_with_their_own_engines_take_turns(group, tmp_path):
    first, second = (own_script(group, tmp_path, name) for name in ("a", "b"))
    group.up()
    ended(group)
    assert set(group.states().values()) == {JobState.SUCCEEDED}, group.logs()
    for job_id in (first, second):
        lines = (Path(group.run_dir) / job_id / "log").read_text().splitlines()
        named = [line.rpartition(" [")[0] or line for line in lines]
        assert named[:6] == ["wake rollout", "rollout 0", "park", "wake train", "train 0", "park"]
        assert group.job(job_id).iteration == 3
        assert group.job(job_id).reward_last == pytest.approx(0.2)
    proofs = [e.data["proof_s"] for e in group.events(EventType.RELEASED)]
    # Both phases run in one process: each device is proven idle before the other one is used.
    assert max(proofs) < 1.0
    assert group.leftovers() == {"processes": [], "files": [], "shm": []}


def test_a_killed_driver_goes_on_after_its_last_finished_iteration(group, tmp_path):
    job_id = group.add_job("k", iterations=6, rollout_s=0.1, train_s=0.1)
    group.up()
    group.wait_iteration(job_id, 2)
    os.kill(group.pid("driver", job=job_id), signal.SIGKILL)
    ended(group)
    assert group.job(job_id).state is JobState.SUCCEEDED
    ends = group.events(EventType.ITERATION_END)
    assert [e.iteration for e in ends] == list(range(6))
    assert [e.data["weight_version"] for e in ends] == [1, 2, 3, 4, 5, 6]
    assert {e.data["attempt"] for e in ends} == {1, 2}


def test_an_emptied_channel_costs_a_driver_nothing_but_time(group):
    job_id = group.add_job("f", iterations=6, rollout_s=0.1, train_s=0.1)
    group.up()
    group.wait_iteration(job_id, 1)
    import redis

    from rmux.run import valkey

    client = redis.Redis.from_url(valkey.socket_url(group.tag))
    client.flushall()
    client.close()
    ended(group)
    ends = group.events(EventType.ITERATION_END)
    assert [e.iteration for e in ends] == list(range(6))
    assert {e.data["attempt"] for e in ends} == {1}


def test_rmux_s_own_time_is_small_beside_a_phase(group):
    for name in ("x", "y"):
        group.add_job(name, iterations=10, rollout_s=0.1, train_s=0.1)
    group.up()
    ended(group)
    starts = [e for e in group.events(EventType.PHASE_START) if e.phase is not Phase.INIT]
    ends = [e for e in group.events(EventType.PHASE_END) if e.phase in ("rollout", "train")]
    overheads = sorted(e.data["overhead_s"] for e in starts if e.device)
    assert overheads[len(overheads) // 2] < 0.002
    totals = sorted(e.data["overhead_s"] for e in ends)
    assert totals[len(totals) // 2] < 0.020


def test_a_job_is_not_measured_on_devices_that_a_group_runs_on(group):
    job_id = group.add_job("m", iterations=1000)
    group.up()
    group.wait_iteration(job_id, 1)
    with group.store.read() as conn:
        spec, cluster = jobs.get(conn, job_id).spec, pools.load(conn)
    probe = GroupProbe(host="test-host", store=group.store)
    with pytest.raises(UnavailableError, match="group g-0001 runs on nodes of pool roll"):
        probe.run(spec, cluster=cluster, iterations=1)


def test_a_driver_that_is_told_to_stop_leaves_its_job_to_be_resumed(group):
    job_id = group.add_job("s", iterations=1000, rollout_s=0.1, train_s=0.1)
    parent = group.up()
    group.wait_iteration(job_id, 1)
    began_s = SystemClock().now_s()
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(timeout=60) == 143
    assert SystemClock().now_s() - began_s < 20
    assert group.job(job_id).state not in (JobState.FAILED, JobState.CANCELLED)
    assert processes.tagged(group.tag) == []
    finished = group.job(job_id).iteration
    group.up()
    group.wait_iteration(job_id, finished + 1)
    ends = [e.iteration for e in group.events(EventType.ITERATION_END)]
    assert ends == sorted(set(ends))
