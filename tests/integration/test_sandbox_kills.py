"""Nothing that user code started outlives its sandbox, and nothing that it prints fills a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmux.run.sandbox.pool import RewardPool

SOURCE = """
import os, sys, time

def reward(mark, how):
    if how == "plain":
        return 1.5
    if how == "flood":
        print("flood " * 10**6)
        return 1.0
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        line = [sys.executable, "-c", "import time; time.sleep(600)", mark]
        os.execve(sys.executable, line, {} if how == "bare" else os.environ)
    os.wait()
    if how == "orphan":
        os._exit(1)
    time.sleep(600)
"""


@pytest.fixture
def reward(tmp_path: Path) -> str:
    (tmp_path / "reward.py").write_text(SOURCE)
    return f"{tmp_path / 'reward.py'}:reward"


@pytest.mark.parametrize("how", ["late", "bare", "orphan"])
def test_what_left_its_session_is_killed_too(reward: str, how: str) -> None:
    """'bare' has no run tag in its environment; the sandbox of 'orphan' is gone before it."""
    mark = f"rmux-sandbox-daemon-{os.getpid()}-{how}"
    with RewardPool(reward, timeout_s=0.5, num_processes=1) as pool:
        assert pool.score([(mark, how)]) == [None]
        assert _command_lines(mark) == []
        assert pool.score([(mark, "plain")]) == [1.5]


def test_what_is_printed_beyond_a_limit_is_dropped(
    reward: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with RewardPool(reward, timeout_s=5.0, num_processes=1) as pool:
        assert pool.score([("", "flood"), ("", "plain")]) == [1.0, 1.5]
    assert 2**15 < len(capsys.readouterr().err) <= 2**16 + 1


def _command_lines(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found
