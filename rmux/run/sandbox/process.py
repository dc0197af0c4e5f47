"""One sandbox process from the outside: start, hand over a call, take its answer, kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rmux

_ROOT = str(Path(rmux.__file__).parents[1])


class Sandbox:
    """Runs in a session of its own, so that what user code started is killed with it."""

    def __init__(self, function: str, *, python: str | None = None) -> None:
        life, self._life = os.pipe()
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", "rmux.run.sandbox", function, str(life)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": _python_path()},
                pass_fds=(life,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(life)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        os.set_blocking(self._answers.fileno(), False)
        self._outgoing = b""
        self._incoming = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Readable when an answer, or the end, is there."""
        return self._answers.fileno()

    @property
    def writer(self) -> int | None:
        """To be waited for until it takes the rest of the call; None when it took all."""
        return self._requests.fileno() if self._outgoing else None

    def send(self, arguments: Sequence[Any]) -> None:
        """Hand over a call; `push` goes on where it does not fit at once."""
        self._outgoing = json.dumps(list(arguments)).encode() + b"\n"
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
        """An answer, None while it is not complete. EOFError when the process ended."""
        while b"\n" not in self._incoming:
            try:
                chunk = os.read(self._answers.fileno(), 2**16)
            except BlockingIOError:
                return None
            if not chunk:
                raise EOFError
            self._incoming += chunk
        line, _, self._incoming = self._incoming.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> str:
        """End the process and all it started; returns how it ended, in words."""
        try:
            # It may be ending by itself: its own exit tells more than our signal.
            self._process.wait(timeout=0.2 if self._ended_output() else 0.0)
        except subprocess.TimeoutExpired:
            pass
        ended = self._process.poll()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        os.close(self._life)
        for stream in (self._requests, self._answers):
            try:
                stream.close()
            except BrokenPipeError:
                pass
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


def _python_path() -> str:
    before = os.environ.get("PYTHONPATH")
    return f"{_ROOT}{os.pathsep}{before}" if before else _ROOT
