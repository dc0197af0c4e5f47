"""Cores and priority of all threads of this process, also of those that already run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rmux.errors import BackendError

T = TypeVar("T")

_TASKS = Path("/proc/self/task")


def threads() -> list[int]:
    """Kernel ids of this process's threads.

    The kernel cuts a listing short at a thread that ends while it is read, so one counts only when
    the next says the same.
    """
    seen = _listed()
    while (now := _listed()) != seen:
        seen = now
    return seen


def _listed() -> list[int]:
    return [int(entry.name) for entry in _TASKS.iterdir()]


def pin_threads(cores: Sequence[int]) -> int:
    """Pin every thread of this process to the cores; returns how many were not yet.

    `sched_setaffinity(0, …)` moves the calling thread alone. New threads inherit from the one that
    makes them, so once a pass finds nothing to do, all later threads are pinned too. No cores:
    nothing is changed. BackendError when the host lacks one of the cores.
    """
    wanted = set(cores)
    if not wanted:
        return 0
    moved = 0
    while passed := sum(_pin(thread, wanted) for thread in threads()):
        moved += passed
    return moved


def _pin(thread: int, wanted: set[int]) -> int:
    try:
        if os.sched_getaffinity(thread) == wanted:
            return 0
        os.sched_setaffinity(thread, wanted)
    except ProcessLookupError:
        return 0  # it ended meanwhile
    except OSError as error:
        raise BackendError(
            f"cannot pin to cores {sorted(wanted)}: {error.strerror}",
            code="backend.cores",
            hint="the node's `cores` must be cores this host offers to rmux",
        ) from error
    return 1


def run_niced(work: Callable[[], T], *, niceness: int = 10) -> T:
    """Run `work` at low priority and return its result; the caller keeps its own priority.

    Priority belongs to a thread and may not be raised again without the privilege, so the work gets
    a thread of its own. Threads it leaves behind are brought back where that is permitted.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            failure.append(error)

    before = {thread: _priority(thread) for thread in threads()}
    thread = threading.Thread(target=body, name="niced")
    thread.start()
    thread.join()
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    for left in threads():
        if left not in before:
            _restore(left, own)
    if failure:
        raise failure[0]
    return outcome[0]


def _priority(thread: int) -> int | None:
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except ProcessLookupError:
        return None


def _restore(thread: int, niceness: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
    except (PermissionError, ProcessLookupError):
        pass  # not permitted: the thread stays at low priority
