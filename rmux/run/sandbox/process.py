"""One sandbox process from the outside: start, hand over a call, take its answer, kill."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import rmux
from rmux.run import processes

_log = logging.getLogger(__name__)
_ROOT = str(Path(rmux.__file__).parents[1])
_numbers = itertools.count()

MAX_ANSWER_BYTES = 2**24
"""Of one line: more than the longest text takes, however it is escaped."""

MAX_PRINTED_BYTES = 2**16
"""What user code may print into the job's log, per process; the rest is dropped."""


class Kind(StrEnum):
    CALL = "call"
    ENVIRONMENT = "environment"


class Sandbox:
    """Runs in a session of its own and with a run tag of its own; `kill` ends all it started."""

    def __init__(self, function: str, *, kind: Kind = Kind.CALL, python: str | None = None) -> None:
        life, self._life = os.pipe()
        job_tag = os.environ.get(processes.TAG_VARIABLE) or f"rmux-{os.getpid()}"
        # Below the job's tag: what ends the job's processes ends these.
        self._tag = f"{job_tag}-sandbox-{os.getpid()}-{next(_numbers)}"
        environ = {**os.environ, "PYTHONPATH": _python_path(), processes.TAG_VARIABLE: self._tag}
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", __package__, function, str(life), kind.value],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                pass_fds=(life,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(life)
        self._requests = _opened(self._process.stdin)
        self._answers = _opened(self._process.stdout)
        self._prints = _opened(self._process.stderr)
        self._printed_bytes = 0
        self._outgoing = b""
        self._incoming = b""
        self._dead = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Readable when an answer, or the end, is there."""
        return self._answers.fileno()

    @property
    def printing(self) -> int | None:
        """Readable when user code printed something: then call `drain`; None when it closed."""
        return None if self._prints.closed else self._prints.fileno()

    @property
    def writer(self) -> int | None:
        """To be waited for until it takes the rest of the call; None when it took all."""
        return self._requests.fileno() if self._outgoing else None

    def send(self, request: list[Any] | Mapping[str, Any]) -> None:
        """Hand over a call; `push` goes on where it does not fit at once."""
        self._outgoing = json.dumps(request).encode() + b"\n"
        self.push()

    def push(self) -> None:
        try:
            written = os.write(self._requests.fileno(), self._outgoing)
        except BlockingIOError:
            return
        except BrokenPipeError:
            written = len(self._outgoing)  # it died: its answers end, which tells
        self._outgoing = self._outgoing[written:]

    def take(self) -> dict[str, Any] | None:
        """An answer, None while it is not complete.

        EOFError when the process ended, and when what it wrote is no answer: it is of no use then.
        """
        while b"\n" not in self._incoming:
            try:
                chunk = os.read(self._answers.fileno(), 2**16)
            except BlockingIOError:
                return None
            if not chunk or len(self._incoming) > MAX_ANSWER_BYTES:
                raise EOFError
            self._incoming += chunk
        line, _, self._incoming = self._incoming.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            raise EOFError from None
        if not isinstance(answer, dict):
            raise EOFError
        return answer

    def drain(self) -> None:
        """Pass on what user code printed, up to a limit: it must neither fill a disk nor block."""
        while not self._prints.closed:
            try:
                chunk = os.read(self._prints.fileno(), 2**16)
            except BlockingIOError:
                return
            if not chunk:
                self._prints.close()
                return
            left_bytes = MAX_PRINTED_BYTES - self._printed_bytes
            self._printed_bytes += len(chunk)
            if left_bytes > 0:
                sys.stderr.write(chunk[:left_bytes].decode(errors="replace"))
                if len(chunk) > left_bytes:
                    sys.stderr.write("\n")
                    _log.warning("a sandbox prints over %d bytes: dropped", MAX_PRINTED_BYTES)
            else:
                return

    def kill(self) -> str:
        """End the process and all it started; returns how it ended, in words."""
        if self._dead:
            return "killed"
        self._dead = True
        try:
            # It may be ending by itself: its own exit tells more than our signal.
            self._process.wait(timeout=0.2 if self._ended_output() else 0.0)
        except subprocess.TimeoutExpired:
            pass
        ended = self._process.poll()
        if ended is None:
            _kill_tree(self._process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # What it left behind when it ended by itself is found by the tag in its environment.
        processes.sweep(self._tag, grace_s=0.0, exact=True)
        self.drain()
        os.close(self._life)
        for stream in (self._requests, self._answers, self._prints):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        if ended is None:
            return "killed"
        if ended < 0:
            return f"died of {signal.Signals(-ended).name}"
        return f"exited with status {ended}"

    def _ended_output(self) -> bool:
        try:
            return os.read(self._answers.fileno(), 1) == b""
        except BlockingIOError:
            return False


def _opened(stream: Any) -> BinaryIO:
    os.set_blocking(stream.fileno(), False)
    found: BinaryIO = stream
    return found


def _kill_tree(root: int) -> None:
    """End a process and its descendants: being a subreaper it still has all of them below it.

    Each is stopped before its children are looked for, so that none is missed in between.
    """
    stopped: set[int] = set()
    found = {root}
    while found - stopped:
        for pid in found - stopped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)
        found |= processes.descendants(root)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _python_path() -> str:
    before = os.environ.get("PYTHONPATH")
    return f"{_ROOT}{os.pathsep}{before}" if before else _ROOT
