"""`rmux group up` where it cannot work: it says so at once and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.run import valkey

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

CLEAN = {"processes": [], "files": [], "shm": []}
NOBODY = "redis://me:secret@127.0.0.1:1/0"


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    opened.add_nodes()
    opened.add_job("a", iterations=500)
    yield opened
    opened.close()


@dataclass
class Answer:
    code: int
    error: dict
    stdout: str
    seconds: float


def up(group, *args, **environ):
    """`rmux group up`, in a process of its own; its error as JSON."""
    begun_s = time.monotonic()
    child = group.rmux("group", "up", live_group.GROUP, "--json", *args, **environ)
    stdout, stderr = child.communicate(timeout=30)
    error = json.loads(stderr.splitlines()[-1])
    return Answer(child.returncode, error, stdout, time.monotonic() - begun_s)


def check_refused(group, answer, *, code, slug):
    assert (answer.code, answer.error["exit_code"], answer.error["code"]) == (code, code, slug)
    assert answer.error["hint"]
    assert answer.stdout == ""
    assert answer.seconds < 10
    assert group.events(EventType.PROCESS) == [], "nothing was started"
    assert group.leftovers() == CLEAN


@pytest.mark.parametrize("how", [[], ["--detach"]])
def test_a_redis_that_does_not_answer_is_named_without_its_password(group, how):
    answer = up(group, "--redis", NOBODY, *how)
    check_refused(group, answer, code=11, slug="channel.unreachable")
    assert "redis://me:***@127.0.0.1:1/0" in answer.error["message"]
    assert "secret" not in json.dumps(answer.error)
    assert answer.error["retryable"]


@pytest.mark.parametrize("url", ["redis://h:port/0", "http://h:6379"])
def test_what_is_no_channel_is_refused(group, url):
    check_refused(group, up(group, "--redis", url), code=2, slug="channel.url")


def test_another_process_at_the_socket_of_the_server_is_named(group):
    path = valkey.socket_path(group.tag)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        answer = up(group)
        assert path.exists(), "it keeps its socket"
        path.unlink()
    check_refused(group, answer, code=8, slug="socket.taken")
    assert f"pid {os.getpid()} listens at {path}" in answer.error["message"]


def test_a_socket_path_that_is_too_long_is_refused(group, tmp_path):
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    answer = up(group, TMPDIR=str(deep))
    check_refused(group, answer, code=2, slug="socket.too-long")
    assert "107 bytes" in answer.error["message"]
    assert [*deep.iterdir()] == []


def test_a_run_folder_that_cannot_be_written_is_named(group, tmp_path):
    (tmp_path / "file").touch()
    answer = up(group, RMUX_RUN_DIR=str(tmp_path / "file" / "runs"))
    check_refused(group, answer, code=2, slug="run-dir.unusable")
    assert f"{tmp_path}/file/runs" in answer.error["message"]


def test_a_host_without_a_node_of_the_group_is_told_where_they_are(group):
    answer = up(group, "--host", "elsewhere")
    check_refused(group, answer, code=2, slug="group.elsewhere")
    assert "only on test-host" in answer.error["message"]
