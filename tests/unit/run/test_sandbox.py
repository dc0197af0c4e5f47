from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmux.errors import SpecError, WorkerError
from rmux.run.sandbox.check import check_function
from rmux.run.sandbox.pool import RewardPool, Verdict

SOURCE = """
import os, sys, time, subprocess
from beside import BONUS

def reward(prompt, response):
    print("noise", '{"value": 99}', flush=True)
    os.write(1, b'{"value": 98}\\n')
    if response == "stuck":
        while True:
            pass
    if response == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", prompt])
        time.sleep(600)
    if response == "crash":
        os.abort()
    if response == "exit":
        sys.exit(3)
    if response == "leave":
        os._exit(4)
    if response == "raise":
        raise ValueError("no digits in " + prompt)
    if response == "nan":
        return float("nan")
    if response == "infinite":
        return 10.0**400 if prompt == "" else float("-inf")
    if response == "huge":
        return -1e19
    if response == "none":
        return None
    if response == "text":
        return "0.5"
    if response == "truth":
        return True
    if response == "list":
        return [0.5]
    if response == "long":
        raise ValueError("x" * 10**7)
    if response == "pid":
        return os.getpid()
    return len(prompt) + len(response) + BONUS
"""


@pytest.fixture
def reward(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("BONUS = 0.5\n")
    (tmp_path / "reward.py").write_text(SOURCE)
    return f"{tmp_path / 'reward.py'}:reward"


def test_a_batch_is_scored_in_order_whatever_the_function_prints(reward: str) -> None:
    calls = [("p" * at, "r") for at in range(40)]
    with RewardPool(reward, timeout_s=5.0) as pool:
        assert pool.score(calls) == [at + 1.5 for at in range(40)]
        assert pool.score([]) == []


def test_a_stuck_call_fails_its_sample_alone_and_its_process_is_replaced(reward: str) -> None:
    with RewardPool(reward, timeout_s=0.2, num_processes=1) as pool:
        before = pool.score([("", "pid")])
        verdicts = pool.evaluate([("a", "b"), ("a", "stuck"), ("a", "c")])
        assert verdicts == [
            Verdict(value=2.5),
            Verdict(value=None, reason="it took over 0.2 s"),
            Verdict(value=2.5),
        ]
        assert pool.score([("", "pid")]) != before
    assert before[0] is not None
    assert not Path(f"/proc/{int(before[0])}").exists()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("crash", "its process died of SIGABRT"),
        ("leave", "its process exited with status 4"),
        ("exit", "SystemExit: 3"),
        ("raise", "ValueError: no digits in question"),
        ("nan", "what the function returned: nan is not a finite number"),
        ("infinite", "what the function returned: -inf is not a finite number"),
        ("huge", "what the function returned: -1e+19 is beyond ±1e+18"),
        ("none", "what the function returned: None is not a number"),
        ("text", "what the function returned: '0.5' of type str is not a number"),
        ("truth", "what the function returned: True of type bool is not a number"),
        ("list", "what the function returned: [0.5] of type list is not a number"),
    ],
)
def test_a_failing_call_fails_its_sample_with_the_reason(
    reward: str, response: str, reason: str
) -> None:
    with RewardPool(reward, timeout_s=5.0, num_processes=1) as pool:
        failed, fine = pool.evaluate([("question", response), ("a", "b")])
    assert failed == Verdict(value=None, reason=reason)
    assert fine == Verdict(value=2.5)


def test_what_a_call_started_is_killed_with_it(reward: str) -> None:
    mark = f"rmux-sandbox-child-{os.getpid()}"
    with RewardPool(reward, timeout_s=0.3, num_processes=1) as pool:
        assert pool.score([(mark, "child")]) == [None]
    assert _command_lines(mark) == []


def test_a_long_reason_is_cut(reward: str) -> None:
    with RewardPool(reward, timeout_s=5.0) as pool:
        (verdict,) = pool.evaluate([("", "long")])
    assert verdict.reason.startswith("ValueError: xxx")
    assert len(verdict.reason) < 1000


def test_a_batch_of_which_too_much_fails_is_given_up_with_the_reason(reward: str) -> None:
    calls = [("a", "raise" if at % 3 else "b") for at in range(30)]
    with RewardPool(reward, timeout_s=5.0, num_processes=1, max_failed=0.7) as pool:
        assert pool.score(calls).count(None) == 20
    with RewardPool(reward, timeout_s=5.0, num_processes=1, max_failed=0.2) as pool:
        with pytest.raises(WorkerError, match="failed for 7 of 30 responses: ValueError") as caught:
            pool.score(calls)
        assert caught.value.code == "reward.failed"
        assert pool.score([("a", "b")]) == [2.5]


def test_sandboxes_end_with_the_process_that_started_them(reward: str, tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from rmux.run.sandbox.pool import RewardPool\n"
        f"pool = RewardPool({reward!r}, timeout_s=60, num_processes=1)\n"
        "print(int(pool.score([('', 'pid')])[0]), flush=True)\n"
        "pool.score([('', 'stuck')])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    sandbox = Path(f"/proc/{int(parent.stdout.readline())}")
    assert sandbox.exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline_s = time.monotonic() + 5.0
    while time.monotonic() < deadline_s and _runs(sandbox):
        time.sleep(0.005)
    assert not _runs(sandbox)


def test_calls_larger_than_a_pipe_go_through(reward: str) -> None:
    with RewardPool(reward, timeout_s=5.0) as pool:
        assert pool.score([("p" * 300_000, "r" * 300_000)]) == [600_000.5]


def test_a_function_that_cannot_be_imported_is_told_with_the_last_line(
    reward: str, tmp_path: Path
) -> None:
    check_function(reward)
    (tmp_path / "bad.py").write_text("import no_such_module\n")
    with pytest.raises(SpecError, match=r"No module named 'no_such_module'") as caught:
        check_function(f"{tmp_path / 'bad.py'}:reward")
    assert "Traceback" in caught.value.details["stderr"]
    with pytest.raises(SpecError, match="has no attribute 'nothing'"):
        check_function(reward.replace(":reward", ":nothing"))
    with pytest.raises(SpecError, match="there is no file"):
        check_function(f"{tmp_path / 'none.py'}:reward")
    with pytest.raises(SpecError, match="does not name a function"):
        check_function("reward")
    with pytest.raises(SpecError, match="cannot run /no/python"):
        check_function(reward, python="/no/python")


def test_an_import_that_hangs_or_crashes_is_told(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(SpecError, match=r"it took over 0\.2 s"):
        check_function(f"{tmp_path / 'slow.py'}:reward", timeout_s=0.2)
    (tmp_path / "gone.py").write_text("import os\nos._exit(5)\n")
    with (
        RewardPool(f"{tmp_path / 'gone.py'}:reward", timeout_s=5.0) as pool,
        pytest.raises(WorkerError, match="its process exited with status 5"),
    ):
        pool.score([("", "")])


def _command_lines(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _runs(folder):
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(folder.name)
    return found


def _runs(folder: Path) -> bool:
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
