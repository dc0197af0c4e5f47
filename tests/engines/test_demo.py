"""The demo from its first command to its report, on the real engines, with fewer iterations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ITERATIONS = 4

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def document():
    done = subprocess.run(
        [sys.executable, "-m", "story.flow", "--json", "--iterations", str(ITERATIONS)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout)


def test_both_jobs_finish_every_iteration_and_learn(document):
    assert [job["name"] for job in document["jobs"]] == ["copy", "sort"]
    for job in document["jobs"]:
        assert job["iterations"] == ITERATIONS
        assert job["reward_last"] > job["reward_first"]


def test_each_job_has_the_very_weights_that_it_has_alone(document):
    for row in document["weights_equal"]:
        assert row["compared"] == ITERATIONS
        assert row["equal"] == ITERATIONS


def test_every_number_of_the_report_is_there(document):
    assert document["schema"] == "rmux.demo/v1"
    assert {"vllm", "deepspeed", "ray", "torch"} <= document["engines"].keys()
    for job in document["jobs"]:
        assert job["slowdown"] == pytest.approx(job["coexec_iteration_s"] / job["solo_iteration_s"])
        assert job["slo"] >= 1
    for pool in ("rollout", "train"):
        assert document[pool]["cold_start_s"] > document[pool]["warm_switch_s"] > 0
    assert document["grant_latency_s"]["p99"] >= document["grant_latency_s"]["p50"] > 0
    assert document["overhead_per_phase_s"] > 0
    assert document["sync"]["p50_s"] > 0
    # the published blob: 0.9 M parameters of 4 bytes
    assert 3_000_000 < document["sync"]["bytes"] < 5_000_000
    assert 1 < document["gain_cap"] <= 2
    assert document["gain_per_device_hour"] > 0
    assert set("".join(document["gantt"]["lanes"].values())) <= set("AB·")
