"""One sandbox process and the episodes whose environments live in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rmux.errors import WorkerError
from rmux.run.sandbox.process import Kind, Sandbox

_START_ATTEMPTS = 3


class Outcome(StrEnum):
    """What became of one call of an environment."""

    OK = "ok"
    ACTION = "action"
    """The text was no action: the model's fault."""
    FAILED = "failed"
    """It raised, answered nonsense, took too long or died: the environment's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Answer of one episode's environment to `reset` or `step`."""

    episode: int
    outcome: Outcome = Outcome.OK
    text: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    reason: str = ""
    """Why it is no ordinary answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is asked of the process; `expected` is set when it repeats what it answered before."""

    episode: int
    request: dict[str, Any]
    expected: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    call_s: float
    import_s: float


class Host:
    """Calls are carried out one by one. When the process is lost, the episode whose call it was
    fails; the others' environments are made anew and brought back to where they were by repeating
    their calls. One that then answers otherwise fails too. `deliver` is told every `Move`.
    """

    def __init__(
        self,
        function: str,
        *,
        limits: Limits,
        python: str | None,
        deliver: Callable[[Move], None],
    ) -> None:
        self._function, self._limits, self._python = function, limits, python
        self._deliver = deliver
        self._queue: deque[Call] = deque()
        self._current: Call | None = None
        self._history: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        """Of each episode that goes on: what was asked and answered."""
        self.sandbox: Sandbox | None = None
        self._ready = False
        self._deadline_s = 0.0
        self._losses = 0
        """Of the process, in a row, while it had no call."""

    @property
    def episodes(self) -> int:
        return len(self._history) + len(self._queue)

    @property
    def idle(self) -> bool:
        """It waits for nothing."""
        return self._ready and self._current is None and not self._queue

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def left_s(self) -> float:
        """Until its process is late; infinite while it has nothing to answer."""
        if self.sandbox is None or (self._ready and self._current is None):
            return float("inf")
        return max(0.0, self._deadline_s - time.monotonic())

    def add(self, call: Call) -> None:
        if call.request["op"] == "reset":
            self._history[call.episode] = []
        elif call.episode not in self._history:
            return
        self._queue.append(call)
        self.advance()

    def start(self) -> None:
        if self.sandbox is None:
            self.sandbox = Sandbox(self._function, kind=Kind.ENVIRONMENT, python=self._python)
            self._ready = False
            self._deadline_s = time.monotonic() + self._limits.import_s

    def advance(self) -> None:
        """Do what can be done without waiting. WorkerError when the import fails."""
        self.start()
        while True:
            assert self.sandbox is not None
            self.sandbox.drain()
            self.sandbox.push()
            try:
                answer = self.sandbox.take()
            except EOFError:
                self._lose("")
                continue
            if answer is not None:
                self._accept(answer)
            elif self._late():
                limit_s = self._limits.call_s if self._ready else self._limits.import_s
                self._lose(f"it took over {limit_s:g} s")
            elif not (self._ready and self._current is None and self._queue):
                return
            self._send()

    def close(self) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            sandbox.kill()

    def _late(self) -> bool:
        waits = not self._ready or self._current is not None
        return waits and time.monotonic() >= self._deadline_s

    def _send(self) -> None:
        if self._ready and self._current is None and self._queue:
            assert self.sandbox is not None
            self._current = self._queue.popleft()
            self._deadline_s = time.monotonic() + self._limits.call_s
            self.sandbox.send(self._current.request)

    def _accept(self, answer: dict[str, Any]) -> None:
        call, self._current = self._current, None
        if not self._ready:
            if "error" in answer:
                self.close()
                raise _no_import(self._function, answer["error"], answer.get("trace", ""))
            self._ready = True
        elif call is not None:
            self._losses = 0
            if call.request["op"] == "leave":
                return
            if call.expected is not None and answer != call.expected:
                self._fail(call.episode, "it did not repeat itself after its process was lost")
                self._queue.append(_leaving(call.episode))
            elif "error" in answer:
                self._fail(call.episode, str(answer["error"]))
            else:
                self._history[call.episode].append((call.request, answer))
                if call.expected is None:
                    self._deliver(_move(call.episode, answer))

    def forget(self, episode: int) -> None:
        """The episode is over."""
        self._queue = deque(call for call in self._queue if call.episode != episode)
        if self._history.pop(episode, None):
            self._queue.append(_leaving(episode))
            self.advance()

    def _fail(self, episode: int, reason: str) -> None:
        self._queue = deque(call for call in self._queue if call.episode != episode)
        if self._history.pop(episode, None) is not None:
            self._deliver(Move(episode=episode, outcome=Outcome.FAILED, reason=reason))

    def _lose(self, reason: str) -> None:
        """The process is gone, or goes for being late."""
        assert self.sandbox is not None
        sandbox, self.sandbox = self.sandbox, None
        ended = sandbox.kill()
        reason = reason or f"its process {ended}"
        was_ready, self._ready = self._ready, False
        call, self._current = self._current, None
        if call is not None:
            self._fail(call.episode, reason)
        else:
            self._losses += 1
            if not was_ready and (reason.startswith("it took") or self._losses >= _START_ATTEMPTS):
                raise _no_import(self._function, reason, "")
            if self._losses >= _START_ATTEMPTS:
                raise WorkerError(
                    f"the process of {self._function} ends between its calls: {reason}",
                    code="environment.died",
                )
        asked = [one for one in self._queue if one.expected is None]
        again = [
            Call(episode=episode, request=request, expected=answer)
            for episode, history in self._history.items()
            for request, answer in history
        ]
        for done in self._history.values():
            done.clear()
        self._queue = deque([*again, *(one for one in asked if one.request["op"] != "leave")])
        self.start()


def _leaving(episode: int) -> Call:
    return Call(episode=episode, request={"op": "leave", "episode": episode})


def _move(episode: int, answer: dict[str, Any]) -> Move:
    if "action" in answer:
        return Move(episode=episode, outcome=Outcome.ACTION, reason=str(answer["action"]))
    return Move(
        episode=episode,
        text=answer["text"],
        reward=answer.get("reward", 0.0),
        terminated=answer.get("terminated", False),
        truncated=answer.get("truncated", False),
    )


def _no_import(function: str, reason: str, trace: str) -> WorkerError:
    return WorkerError(
        f"{function} cannot be imported: {reason}",
        code="environment.import",
        details={"stderr": trace},
    )
