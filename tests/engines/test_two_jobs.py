"""Two real jobs on one pair of devices, one of them killed in mid-phase."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import JobState, Phase
from rmux.run import parent, processes
from rmux.run.probe import GroupProbe
from rmux.run.trace_check import check
from rmux.spec import load_cluster, load_spec
from rmux.store import events, jobs
from rmux.store.engine import Store

EXAMPLES = Path(__file__).parents[2] / "examples" / "cpu"
RMUX = Path(sys.executable).parent / "rmux"
HOST = socket.gethostname()
ITERATIONS = 3

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(900)]


def checksums(recorded, job_id=None):
    """Of the synced weights, per iteration; of the last attempt where one was run twice."""
    return {
        event.iteration: event.data["checksum"]
        for event in recorded
        if event.type is EventType.PHASE_END
        and event.phase is Phase.SYNC
        and job_id in (None, event.job_id)
    }


@pytest.fixture(scope="module")
def models():
    subprocess.run([sys.executable, str(EXAMPLES / "make_models.py")], check=True)


@pytest.fixture(scope="module")
def copy_alone(models):
    """Checksums of the copy job's weights when nobody shares its devices."""
    probe = GroupProbe(host=HOST)
    probe.run(
        load_spec(EXAMPLES / "copy.toml"),
        cluster=load_cluster(EXAMPLES / "cluster.toml", host=HOST),
        iterations=ITERATIONS - 1,
    )
    return checksums(probe.recorded)


class Bench:
    """A store of its own and the command line on it."""

    def __init__(self, folder):
        self.url = f"sqlite:///{folder}/rmux.db"
        self.env = os.environ | {"RMUX_STORE": self.url, "RMUX_RUN_DIR": f"{folder}/runs"}
        self.folder = folder

    def rmux(self, *args):
        done = subprocess.run(
            [RMUX, *args, "--json"], env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, name):
        spec = replace(load_spec(EXAMPLES / f"{name}.toml"), iterations=ITERATIONS)
        text = (EXAMPLES / f"{name}.toml").read_text()
        text = text.replace("iterations = 15", f"iterations = {ITERATIONS}")
        for path in ("models/", "tasks.py:"):
            text = text.replace(f'"{path}', f'"{EXAMPLES}/{path}')
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        assert load_spec(path) == spec
        return self.rmux("job", "submit", str(path))


@pytest.fixture
def bench(tmp_path, models):
    return Bench(tmp_path)


def wait_for(condition, *, timeout_s, what):
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)
    return found


def test_a_job_killed_in_mid_phase_resumes_and_ends_with_the_weights_it_has_alone(
    bench, copy_alone
):
    bench.rmux("store", "init")
    bench.rmux("pool", "add", "-f", str(EXAMPLES / "cluster.toml"))
    copy, sort = bench.submit("copy"), bench.submit("sort")
    group = copy["group"]
    assert sort["group"] == group
    store = Store.open(bench.url)

    def recorded(*types):
        with store.read() as conn:
            return events.read(conn, group=group, types=types or None, limit=100_000)

    def begins_second_train():
        return [
            event
            for event in recorded(EventType.PHASE_START)
            if event.job_id == copy["id"] and event.iteration == 1 and event.phase is Phase.TRAIN
        ]

    def driver_pid():
        found = [
            event.data["pid"]
            for event in recorded(EventType.PROCESS)
            if event.data["role"].startswith("driver") and event.job_id == copy["id"]
        ]
        return int(found[-1])

    log = (bench.folder / "up.log").open("wb")
    up = subprocess.Popen([RMUX, "group", "up", group], env=bench.env, stdout=log, stderr=log)
    try:
        wait_for(begins_second_train, timeout_s=240, what="copy never trained a second time")
        os.kill(driver_pid(), signal.SIGKILL)
        assert up.wait(300) == 0, Path(log.name).read_text()
    finally:
        if up.poll() is None:
            up.terminate()
            up.wait(60)

    with store.read() as conn:
        ended = {name["name"]: jobs.get(conn, name["id"]) for name in (copy, sort)}
    assert {job.state for job in ended.values()} == {JobState.SUCCEEDED}
    assert {job.iteration for job in ended.values()} == {ITERATIONS}
    assert (ended["copy"].attempt, ended["sort"].attempt) == (2, 1)
    story = recorded()
    assert check(story) == []

    rollouts = [
        (event.job_id, event.iteration)
        for event in story
        if event.type is EventType.PHASE_START and event.phase is Phase.ROLLOUT
    ]
    # the killed iteration was run again from its rollout; the other job lost nothing
    assert [it for job, it in rollouts if job == copy["id"]] == [0, 1, 1, 2]
    assert [it for job, it in rollouts if job == sort["id"]] == [0, 1, 2]
    assert checksums(story, copy["id"]) == copy_alone
    assert len(copy_alone) == ITERATIONS

    tag = parent.group_tag(bench.url, group, host=HOST)
    wait_for(lambda: not processes.tagged(tag), timeout_s=20, what="processes were left")
    assert not [path for path in Path("/dev/shm").iterdir() if tag in path.name]
