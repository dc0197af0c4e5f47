from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from rmux.errors import UserError
from rmux.run import processes
from rmux.run.inbox import Ended, Inbox
from rmux.run.processes import ProcessId

SLEEP = ["sleep", "60"]


@pytest.fixture
def tag():
    name = f"rxtest{uuid.uuid4().hex[:8]}"
    yield name
    assert processes.tagged(name) == []


@pytest.fixture
def spawn(tmp_path, tag):
    started = []

    def start(argv=SLEEP, *, tag=tag, **environ):
        environ = {**os.environ, processes.TAG_VARIABLE: tag, **environ}
        child = processes.spawn(argv, environ=environ, log=tmp_path / "log")
        started.append(child)
        while argv is SLEEP and Path(f"/proc/{child.pid}/environ").read_bytes() == b"":
            pass  # its environment can be read a moment after exec
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def identity(child) -> ProcessId:
    found = processes.identify(child.pid)
    assert found is not None
    return found


def test_a_process_is_named_by_boot_pid_and_start_time(spawn):
    process = identity(spawn())
    assert ProcessId.parse(str(process)) == process
    assert processes.is_alive(process)
    impostor = ProcessId(
        boot_id=process.boot_id, pid=process.pid, start_ticks=process.start_ticks + 1
    )
    assert not processes.is_alive(impostor)


@pytest.mark.parametrize("text", ["", "a:b:c", "boot:1", "1234"])
def test_text_that_names_no_process_is_refused(text):
    with pytest.raises(UserError):
        ProcessId.parse(text)


def test_a_zombie_counts_as_ended(spawn):
    child = spawn(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    assert processes.identify(child.pid) is None


def test_a_spawned_process_leads_its_own_session_and_writes_to_its_log(spawn, tmp_path):
    child = spawn([sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"])
    child.wait()
    assert (tmp_path / "log").read_text() == "True\n"


def test_a_process_without_a_new_session_leads_a_group_in_the_callers_session(tmp_path):
    code = "import os; print(os.getsid(0), os.getpgid(0) == os.getpid())"
    child = processes.spawn(
        [sys.executable, "-c", code], environ=os.environ, log=tmp_path / "log", new_session=False
    )
    child.wait()
    assert (tmp_path / "log").read_text() == f"{os.getsid(0)} True\n"


def test_stop_kills_what_does_not_listen(spawn):
    deaf = "trap '' TERM; echo ready; sleep 60 & wait; wait"
    child = subprocess.Popen(["sh", "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    process = identity(child)
    assert processes.stop([process], grace_s=0.05) == 1
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def test_a_sweep_ends_what_carries_the_tag_or_one_below_it_and_nothing_else(spawn, tag):
    mine, below = spawn(), spawn(tag=f"{tag}-j-1-a001")
    other, longer = spawn(tag="other"), spawn(tag=f"{tag}x")
    assert processes.sweep(tag, grace_s=2.0) == 2
    assert mine.wait() == below.wait() == -signal.SIGTERM
    assert other.poll() is None
    assert longer.poll() is None


def test_an_exact_sweep_leaves_what_is_below_the_tag(spawn, tag):
    mine, below = spawn(), spawn(tag=f"{tag}-j-1-a001")
    assert processes.sweep(tag, grace_s=2.0, exact=True) == 1
    assert mine.wait() == -signal.SIGTERM
    assert below.poll() is None


def test_only_own_and_named_segments_are_removed(tag):
    names = [f"seg_{tag}_0", f"recorded_{tag[::-1]}", f"foreign_{tag[::-1]}"]
    paths = [Path("/dev/shm") / name for name in names]
    for path in paths:
        path.write_bytes(b"x")
    try:
        removed = processes.remove_shared_memory(tag, recorded=[names[1]])
        assert sorted(removed) == sorted(names[:2])
        assert paths[2].exists()
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def test_the_end_of_a_process_that_is_no_child_of_ours_is_noticed(spawn):
    middle = "sleep 60 >/dev/null & echo $!"
    output = subprocess.run(["sh", "-c", middle], stdout=subprocess.PIPE, check=True).stdout
    orphan = processes.identify(int(output))
    assert orphan is not None
    inbox = Inbox()
    inbox.watch(orphan)
    assert inbox.take(0) == []
    os.kill(orphan.pid, signal.SIGKILL)
    assert inbox.take(5) == [Ended(orphan)]
    inbox.close()


def test_watching_a_process_that_is_gone_reports_its_end_at_once():
    process = ProcessId(boot_id=processes.this_process().boot_id, pid=2**22 - 1, start_ticks=1)
    inbox = Inbox()
    inbox.watch(process)
    assert inbox.take(0) == [Ended(process)]


def test_the_run_time_of_a_process_grows_while_it_works():
    before_ns = processes.run_time_ns([os.getpid()])
    total = sum(range(300_000))
    assert total > 0
    assert processes.run_time_ns([os.getpid()]) - before_ns > 500_000


def test_a_process_that_is_gone_has_used_no_time():
    assert processes.run_time_ns([2**22 - 1]) == 0


def test_last_lines_of_a_log_that_is_not_there_are_empty(tmp_path):
    assert processes.last_lines(tmp_path / "none") == ""
    (tmp_path / "log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert processes.last_lines(tmp_path / "log", count=2) == "line 98\nline 99"


def test_precedence_ends_with_the_thread_that_took_it():
    seen = {}

    def work():
        seen["allowed"] = processes.take_precedence()
        seen["own"] = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        child = threading.Thread(target=lambda: seen.update(thread=os.sched_getscheduler(0)))
        child.start()
        child.join()
        policy = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
        seen["process"] = int(subprocess.check_output(policy))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen["own"] == (os.SCHED_RR if seen["allowed"] else os.SCHED_OTHER)
    assert seen["thread"] == seen["process"] == os.SCHED_OTHER == os.sched_getscheduler(0)
