from __future__ import annotations

import os
import subprocess
import sys

import pytest

SOURCE = """
import os, threading
from rmux.run.workers.affinity import pin_threads, run_niced, threads

def resting():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    return thread, stop

def affinities():
    return {{frozenset(os.sched_getaffinity(thread)) for thread in threads()}}

{body}
"""


def run(body: str) -> str:
    """In a process of its own: threads of this one are not to be moved."""
    done = subprocess.run(
        [sys.executable, "-c", SOURCE.format(body=body)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_threads_are_pinned_those_from_before_and_those_made_later() -> None:
    core = min(os.sched_getaffinity(0))
    out = run(
        f"""
before, stop_before = resting()
moved = pin_threads([{core}])
later, stop_later = resting()
print(len(threads()), moved, affinities() == {{frozenset([{core}])}}, pin_threads([{core}]))
stop_before.set(); stop_later.set()
"""
    )
    expected_moved = "2" if len(os.sched_getaffinity(0)) > 1 else "0"
    assert out.split() == ["3", expected_moved, "True", "0"]


def test_no_cores_leave_affinity_alone() -> None:
    out = run("before = affinities()\nprint(pin_threads([]), affinities() == before)")
    assert out.split() == ["0", "True"]


def test_a_core_that_the_host_lacks_is_an_error() -> None:
    out = run(
        """
from rmux.errors import BackendError
try:
    pin_threads([4000])
except BackendError as error:
    print(error)
"""
    )
    assert out.startswith("cannot pin to cores [4000]")


def test_niced_work_runs_at_low_priority_and_the_caller_and_what_it_left_do_not() -> None:
    out = run(
        """
own = os.getpriority(os.PRIO_PROCESS, 0)
left = []
def work():
    left.append(resting())
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
low = run_niced(work, niceness=own + 5)
mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
thread, stop = left[0]
restored = os.getpriority(os.PRIO_PROCESS, thread.native_id)
print(low - own, mine - own, restored - own)
stop.set()
"""
    )
    low, mine, restored = map(int, out.split())
    assert (low, mine) == (5, 0)
    # Raising a priority again is a privilege.
    assert restored == (0 if os.geteuid() == 0 else 5)


def test_an_error_of_niced_work_reaches_the_caller() -> None:
    from rmux.run.workers.affinity import run_niced

    with pytest.raises(ZeroDivisionError):
        run_niced(lambda: 1 / 0, niceness=os.getpriority(os.PRIO_PROCESS, 0))
