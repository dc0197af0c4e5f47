"""`rmux job ls` on two thousand jobs, in a process of its own and into a pipe."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from rmux.ids import JobId
from rmux.job import Engine, Job, JobSpec, JobState
from rmux.store import jobs
from rmux.store.engine import Store

COUNT = 2_000
RMUX = [sys.executable, "-m", "rmux"]


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    store = Store.create(f"sqlite:///{folder}/rmux.db")
    with store.write() as conn:
        for number in range(COUNT):
            spec = JobSpec(name=f"job-{number}", engine=Engine.EMULATED)
            job = Job(
                id=JobId(f"j-{number:06d}"),
                spec=spec,
                spec_hash="x3:1",
                state=JobState.PENDING,
                created_at=datetime.now(UTC),
            )
            jobs.insert(conn, job)
    store.close()
    return {**os.environ, "RMUX_STORE": store.url, "HOME": str(folder), "NO_COLOR": "1"}


@pytest.mark.parametrize(("form", "unbuffered"), [("table", ""), ("jsonl", "1")])
def test_the_first_line_can_be_taken_from_a_long_list_without_a_failure(env, form, unbuffered):
    command = [*RMUX, "job", "ls", "--limit", "0", "-o", form]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1', "-", *command],
        capture_output=True,
        text=True,
        env={**env, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert "error" not in done.stderr


def test_every_job_is_listed_whole_for_a_program(env):
    done = subprocess.run(
        [*RMUX, "job", "ls", "--limit", "0", "-o", "jsonl"],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == COUNT
    assert {json.loads(line)["schema"] for line in lines} == {"rmux.job/v1"}
