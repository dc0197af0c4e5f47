"""`rmux place period` in a process of its own, between pipes."""

import json
import os
import subprocess
import sys

import pytest

from rmux.cli.documents_place import PeriodDocument

RMUX = [sys.executable, "-m", "rmux", "place", "period"]
QUESTION = {
    "jobs": [
        {"name": "A", "rollout_s": 10, "train_s": 6, "nodes": ["n0", "n3"]},
        {"name": "B", "rollout_s": 17, "train_s": 5, "nodes": ["n0", "n1", "n2"]},
        {"name": "C", "rollout_s": 11, "train_s": 19, "nodes": ["n2", "n3"]},
    ]
}


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "HOME": str(tmp_path), "NO_COLOR": "1", "PYTHONWARNINGS": "error"}


def ask(argv, env, text):
    return subprocess.run(
        [*RMUX, *argv], input=text, capture_output=True, env=env, timeout=60, check=False
    )


def test_a_question_on_stdin_is_answered_by_one_document_and_leaves_no_store(env, tmp_path):
    done = ask(["-", "--json"], env, json.dumps(QUESTION).encode())
    assert (done.returncode, done.stderr) == (0, b"")
    found = PeriodDocument.model_validate_json(done.stdout)
    assert (found.period_s, found.cycle_s, found.load_s) == (38, 30, 30)
    assert not found.closed_form
    assert sorted(found.order) == ["A", "B", "C"]
    assert list(tmp_path.iterdir()) == []


def test_the_order_that_is_answered_may_be_cut_off_by_its_reader(env):
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1', "-", *RMUX, "-", "-o", "name"],
        input=json.dumps(QUESTION),
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "A\n", "")


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[1, 2", b'{"jobs": [{"name": "A"}]}'])
def test_what_cannot_be_read_prints_nothing_and_ends_with_2(env, text):
    done = ask(["-", "--json"], env, text)
    assert (done.returncode, done.stdout) == (2, b"")
    error = json.loads(done.stderr.splitlines()[-1])
    assert (error["schema"], error["exit_code"]) == ("rmux.error/v1", 2)
    assert error["message"].startswith("stdin")
    assert b"Traceback" not in done.stderr
