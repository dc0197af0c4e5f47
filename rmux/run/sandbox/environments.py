"""Environments of many episodes in a few killable processes, each call with a deadline."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from rmux.errors import RmuxError, WorkerError
from rmux.run.sandbox.host import Call, Host, Limits, Move
from rmux.run.sandbox.pool import IMPORT_S

_log = logging.getLogger(__name__)


class EnvironmentPool:
    """`function` is 'file.py:name' of a class or factory: rmux-environment(7).

    Answers are collected by a thread of the pool, so that environments go on while the caller
    waits for something else; `reset`, `step` and `end` only ask, `next` tells what came of it.
    These four are for one thread.
    """

    def __init__(
        self,
        function: str,
        *,
        timeout_s: float,
        num_processes: int = 2,
        python: str | None = None,
        import_s: float = IMPORT_S,
    ) -> None:
        self._moves: queue.SimpleQueue[Move | None] = queue.SimpleQueue()
        limits = Limits(call_s=timeout_s, import_s=import_s)
        self._hosts = [
            Host(function, limits=limits, python=python, deliver=self._moves.put)
            for _ in range(num_processes)
        ]
        self._numbers = itertools.count()
        # The hosts know an episode by a number that is never used again.
        self._serials: dict[int, int] = {}
        self._episodes: dict[int, int] = {}
        self._homes: dict[int, Host] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)
        self._thread: threading.Thread | None = None
        self._closing = False
        self._settled = threading.Event()
        """Set once every process is there, or never will be."""
        self._failure: RmuxError | None = None

    def start(self) -> None:
        """Start every process and wait until it has imported. WorkerError when it cannot."""
        for host in self._hosts:
            self._ask(host.advance)
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def reset(self, episode: int, *, seed: int) -> None:
        """Begin an episode, numbered as the caller likes, in an environment of its own."""
        self.end(episode)
        serial = self._serials[episode] = next(self._numbers)
        self._episodes[serial] = episode
        request = {"op": "reset", "episode": serial, "seed": seed}

        def ask() -> None:
            self._homes[serial] = host = min(self._hosts, key=lambda one: one.episodes)
            host.add(Call(episode=serial, request=request))

        self._ask(ask)

    def step(self, episode: int, text: str) -> None:
        """Play what the model said in an episode that answered its last call."""
        serial = self._serials[episode]
        request = {"op": "step", "episode": serial, "text": text}
        self._ask(lambda: self._homes[serial].add(Call(episode=serial, request=request)))

    def end(self, episode: int) -> None:
        """Give the environment of an episode back; no answer of it comes any more."""
        if (serial := self._serials.pop(episode, None)) is not None:
            del self._episodes[serial]
            self._ask(lambda: self._homes.pop(serial).forget(serial))

    def next(self, timeout_s: float) -> Move | None:
        """The next answer, None after `timeout_s`. WorkerError when the function's file cannot be
        imported (any more)."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                found = self._moves.get(block=left_s > 0, timeout=left_s)
            except queue.Empty:
                return None
            if found is None:
                self._moves.put(None)  # whoever asks next has to know, too
                assert self._failure is not None
                raise self._failure
            if (episode := self._episodes.get(found.episode)) is not None:
                return replace(found, episode=episode)

    def close(self) -> None:
        """Kill every process."""
        if self._closing:
            return
        self._closing = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
        for host in self._hosts:
            host.close()
        os.close(self._bell)
        os.close(self._ring)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, action: Callable[[], None]) -> None:
        if self._closing:
            raise WorkerError("the environments are closed", code="environment.closed")
        self._asked.append(action)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="environments", daemon=True)
            self._thread.start()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.write(self._ring, b"!")

    def _run(self) -> None:
        try:
            while not self._closing:
                while self._asked:
                    self._asked.popleft()()
                for host in self._await():
                    host.advance()
                if all(host.ready for host in self._hosts):
                    self._settled.set()
        except RmuxError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the top of a thread: the next caller is told
            _log.exception("the environments' thread ends")
            self._fail(WorkerError(f"environments: {error!r}", code="environment.failed"))

    def _fail(self, error: RmuxError) -> None:
        self._failure = error
        self._moves.put(None)
        self._settled.set()

    def _await(self) -> list[Host]:
        """Hosts with something to read or write, or late."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        owners: dict[int, Host] = {}
        for host in self._hosts:
            if (sandbox := host.sandbox) is None:
                continue
            owners[sandbox.fileno()] = host
            poller.register(sandbox.fileno(), select.POLLIN)
            if (printing := sandbox.printing) is not None:
                owners[printing] = host
                poller.register(printing, select.POLLIN)
            if (writer := sandbox.writer) is not None:
                owners[writer] = host
                poller.register(writer, select.POLLOUT)
        left_s = min(host.left_s for host in self._hosts)
        found = poller.poll(None if left_s == float("inf") else left_s * 1000 + 1)
        ready = {id(owners[fd]): owners[fd] for fd, _ in found if fd in owners}
        if any(fd == self._bell for fd, _ in found):
            os.read(self._bell, 2**16)
        late = {id(host): host for host in self._hosts if host.left_s == 0.0}
        return list({**ready, **late}.values())
