"""Processes of a host: naming one for good, starting, watching, stopping, and proof of idleness."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmux import clock
from rmux.errors import UserError

TAG_VARIABLE = "RMUX_RUN_TAG"
PARENT_VARIABLE = "RMUX_PARENT_PID"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """Names one process for good: a pid is used again, its start time on this boot is not."""

    boot_id: str
    pid: int
    start_ticks: int
    """Clock ticks after boot at which it started."""

    def __str__(self) -> str:
        return f"{self.boot_id}:{self.pid}:{self.start_ticks}"

    @staticmethod
    def parse(text: str) -> ProcessId:
        """UserError when the text is no process."""
        boot, _, rest = text.partition(":")
        pid, _, ticks = rest.partition(":")
        if not (boot and pid.isdigit() and ticks.isdigit()):
            raise UserError(f"{text!r} does not name a process")
        return ProcessId(boot_id=boot, pid=int(pid), start_ticks=int(ticks))


boot_id = functools.cache(clock.boot_id)
"""Of the host as it runs now: no process outlives it."""


def identify(pid: int) -> ProcessId | None:
    """The process with this pid now; None when there is none or only its exit status is left."""
    stat = _stat(pid)
    if stat is None or stat[0] in "ZX":
        return None
    return ProcessId(boot_id=boot_id(), pid=pid, start_ticks=int(stat[19]))


def this_process() -> ProcessId:
    me = identify(os.getpid())
    assert me is not None
    return me


def is_alive(process: ProcessId) -> bool:
    """Whether exactly this process still runs on this host; a zombie does not."""
    return identify(process.pid) == process


def die_with_parent(signum: int = signal.SIGTERM) -> None:
    """Get `signum` when the parent ends; call early in a process started with PARENT_VARIABLE.

    The signal is sent when the parent's *thread* that started us ends, so parents start processes
    from their main thread only.
    """
    parent = int(os.environ.get(PARENT_VARIABLE, "0"))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if parent and os.getppid() != parent:
        # It ended before the request was in place.
        os.kill(os.getpid(), signum)


def take_precedence(pid: int = 0) -> bool:
    """Let a thread that hands devices over run before threads that compute; False if not allowed.

    On a host whose every core computes, each hop of a grant otherwise waits for a time slice of
    the scheduler, a few ms. `pid` 0 is the calling thread; threads and processes it makes later do
    not inherit it.
    """
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(pid, policy, os.sched_param(1))
    except OSError:
        return False
    return True


def spawn(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    new_session: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a process in its own group, stdout and stderr appended to `log`.

    Without a `new_session` it stays in the scheduler's group of the caller. Linux weighs sessions
    against each other core by core (autogroup), and a session that has been busy on one core may
    wait for seconds on another one that computes.
    """
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environ, PARENT_VARIABLE: str(os.getpid())},
            cwd=cwd,
            start_new_session=new_session,
            process_group=-1 if new_session else 0,
        )


def module_argv(module: str, *args: str) -> list[str]:
    """The command line that runs a module of rmux with this interpreter."""
    return [sys.executable, "-m", module, *args]


def wait_ended(processes: Iterable[ProcessId], *, timeout_s: float) -> list[ProcessId]:
    """Wait for all to end; returns those still alive after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    left = [process for process in processes if is_alive(process)]
    while left and (now_s := time.monotonic()) < deadline_s:
        with contextlib.ExitStack() as stack:
            poller = select.poll()
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    fd = os.pidfd_open(process.pid)
                    stack.callback(os.close, fd)
                    poller.register(fd, select.POLLIN)
            poller.poll(min(100.0, (deadline_s - now_s) * 1000))
        left = [process for process in left if is_alive(process)]
    return left


def signal_group(process: ProcessId, signum: int) -> None:
    """Signal a process started by `spawn`, with its whole process group; no-op when it is gone."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)


def stop(processes: Sequence[ProcessId], *, grace_s: float) -> int:
    """SIGTERM, then SIGKILL after `grace_s`, to process and group; returns how many were killed."""
    for process in processes:
        signal_group(process, signal.SIGTERM)
    left = wait_ended(processes, timeout_s=grace_s)
    for process in left:
        signal_group(process, signal.SIGKILL)
    wait_ended(left, timeout_s=2.0)
    return len(left)


def tagged(tag: str, *, exact: bool = False) -> list[ProcessId]:
    """Own processes whose environment carries the run tag or, unless `exact`, one below it."""
    exact_entry = f"{TAG_VARIABLE}={tag}".encode()
    uid = os.getuid()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if folder.stat().st_uid != uid:
                continue
            entries = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        below = not exact and any(entry.startswith(exact_entry + b"-") for entry in entries)
        if exact_entry in entries or below:
            process = identify(int(folder.name))
            if process is not None:
                found.append(process)
    return found


def descendants(root: int) -> set[int]:
    """Pids of the children of a process, of theirs, and so on, as they are now."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))) is not None:
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(below)
        waiting.extend(below)
    return found


def sweep(tag: str, *, grace_s: float, exact: bool = False) -> int:
    """End every own process that carries the tag, in bounded time; returns how many there were.

    They are signalled one by one: a process that left its group still carries its environment.
    """
    seen: set[ProcessId] = set()
    for signum, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0), (signal.SIGKILL, 2.0)):
        processes = tagged(tag, exact=exact)
        seen.update(processes)
        for process in processes:
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signum)
        if not wait_ended(processes, timeout_s=wait_s) and not tagged(tag, exact=exact):
            break
    return len(seen)


def remove_shared_memory(tag: str, *, recorded: Iterable[str] = ()) -> list[str]:
    """Unlink own segments that carry the tag in their name, and recorded ones; returns names.

    Call it when nothing of the run is alive: a segment in use would be torn.
    """
    wanted = set(recorded)
    removed = []
    for entry in Path("/dev/shm").iterdir():
        own = tag in entry.name or entry.name in wanted
        with contextlib.suppress(OSError):
            if own and entry.lstat().st_uid == os.getuid() and not entry.is_dir():
                entry.unlink()
                removed.append(entry.name)
    return removed


def run_time_ns(pids: Iterable[int]) -> int:
    """CPU time of all threads of the processes so far, ns; one that is gone counts as 0."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with (
                    contextlib.suppress(OSError, IndexError),
                    open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file,
                ):
                    total += int(file.read().split()[0])
    return total


def last_lines(path: Path, *, count: int = 20) -> str:
    """The end of a log, at most 16 KiB of it; empty when there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    return ""


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the command name, which may hold blanks and brackets.
    return text.rpartition(")")[2].split()
