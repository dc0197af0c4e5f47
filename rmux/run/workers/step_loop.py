"""One thread that owns an engine: it steps while there is work and runs commands in between.

Everything else only enqueues, so a stop is not stepping, and a batch handed over in one command is
in the engine before its first step. Tokens leave in flushes that are kept until acknowledged.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rmux.errors import WorkerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens of one request, from position `offset` of its output on."""

    request_id: str
    offset: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str = ""
    """'stop' or 'length' with the last tokens; empty before."""


class Stepper(Protocol):
    """An engine that is driven step by step."""

    def has_work(self) -> bool: ...

    def step(self) -> Iterable[Delta]: ...


class StepLoop:
    """`call` and `poll` may be used from any thread; the engine is touched by the loop's alone."""

    def __init__(self, *, name: str, flush_s: float = 0.05) -> None:
        self._flush_s = flush_s
        self._engine: Stepper | None = None
        self._stepping = False
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._outbox: deque[tuple[int, tuple[Delta, ...]]] = deque()
        self._flushed = threading.Condition()
        self._sequence = 0
        self._buffer: dict[str, list[Delta]] = {}
        self._flushed_at_s = -math.inf
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def own(self, make: Callable[[], Stepper]) -> None:
        """Make the engine on the loop's thread."""

        def command() -> None:
            self._engine = make()

        self.call(command)

    def call(self, command: Callable[[], T]) -> T:
        """Run `command` on the loop's thread between two steps; returns or raises what it does."""
        future: Future[T] = Future()
        with self._wake:
            self._check_alive()
            self._commands.append((command, future))
            self._wake.notify()
        return future.result()

    @property
    def stepping(self) -> bool:
        return self._stepping

    def set_stepping(self, *, stepping: bool) -> None:
        """Allow or forbid steps; once it returns, no step is running when forbidden."""

        def command() -> None:
            self._stepping = stepping

        self.call(command)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Buffer tokens that no step handed out; on the loop's thread only."""
        for delta in deltas:
            self._buffer.setdefault(delta.request_id, []).append(delta)

    def flush(self) -> None:
        """Hand over what is buffered; on the loop's thread only."""
        if not self._buffer:
            return
        merged = tuple(_merge(deltas) for deltas in self._buffer.values())
        self._buffer.clear()
        with self._flushed:
            self._sequence += 1
            self._outbox.append((self._sequence, merged))
            self._flushed.notify_all()

    def poll(self, cursor: int, *, timeout_s: float) -> tuple[int, tuple[Delta, ...]]:
        """All flushes after `cursor`, waiting for one; returns the new cursor with them.

        A flush is kept until a later call acknowledges it by its cursor, so a lost answer loses
        nothing. WorkerError when the engine failed.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._flushed:
            while self._outbox and self._outbox[0][0] <= cursor:
                self._outbox.popleft()
            while not self._outbox and not self._failure:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return cursor, ()
                self._flushed.wait(left_s)
            if not self._outbox:
                self._check_alive()
            deltas = tuple(delta for _, flush in self._outbox for delta in flush)
            return (self._outbox[-1][0] if self._outbox else cursor), deltas

    def _run(self) -> None:
        while True:
            with self._wake:
                # No timeout: a parked loop must not run at all.
                while not self._commands and not self._has_work():
                    self._wake.wait()
                commands = list(self._commands)
                self._commands.clear()
            for command, future in commands:
                _fulfil(future, command)
            try:
                if self._has_work():
                    self._step()
            except Exception:  # noqa: BLE001 - the top of a thread: the next caller is told
                self._fail(traceback.format_exc())
                return

    def _has_work(self) -> bool:
        return self._stepping and self._engine is not None and self._engine.has_work()

    def _step(self) -> None:
        assert self._engine is not None
        self.add(self._engine.step())
        now_s = time.monotonic()
        if now_s - self._flushed_at_s >= self._flush_s or not self._engine.has_work():
            self._flushed_at_s = now_s
            self.flush()

    def _fail(self, text: str) -> None:
        with self._wake:
            self._failure = text
            pending = list(self._commands)
            self._commands.clear()
        for _, future in pending:
            future.set_exception(self._error())
        with self._flushed:
            self._flushed.notify_all()

    def _check_alive(self) -> None:
        if self._failure:
            raise self._error()

    def _error(self) -> WorkerError:
        lines = self._failure.strip().splitlines()
        return WorkerError(
            f"the engine failed: {lines[-1]}",
            code="engine.failed",
            details={"stderr": "\n".join(lines[-20:])},
        )


def _fulfil(future: Future[Any], command: Callable[[], Any]) -> None:
    try:
        future.set_result(command())
    except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
        future.set_exception(error)


def _merge(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        request_id=deltas[0].request_id,
        offset=deltas[0].offset,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(value for delta in deltas for value in delta.logprobs),
        finish_reason=deltas[-1].finish_reason,
    )
