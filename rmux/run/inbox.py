"""One place where a process's loop waits: messages, ends of processes and news of its threads."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import threading
from dataclasses import dataclass
from typing import Any

from rmux.run.channel import Channel
from rmux.run.messages import Message
from rmux.run.processes import ProcessId, is_alive, take_precedence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrived:
    stream: str
    message: Message


@dataclass(frozen=True, slots=True)
class Ended:
    process: ProcessId


class Inbox:
    """Filled from any thread, emptied by the loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def post(self, item: Any) -> None:
        self._queue.put(item)

    def take(self, timeout_s: float) -> list[Any]:
        """All that is there, after waiting up to `timeout_s` for a first item.

        Of several messages on one stream only the newest is kept: each carries all the ones before.
        """
        items: list[Any] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._queue.get(timeout=max(0.0, timeout_s)))
            while True:
                items.append(self._queue.get_nowait())
        newest = {item.stream: item for item in items if isinstance(item, Arrived)}
        return [
            item for item in items if not isinstance(item, Arrived) or newest[item.stream] is item
        ]

    def listen(self, channel: Channel) -> None:
        """Post every message of the channel, from a thread that lives until `close`."""

        def loop() -> None:
            take_precedence()
            while not self._stopped.is_set():
                for stream, message in channel.receive(1.0):
                    self.post(Arrived(stream, message))

        threading.Thread(target=loop, name="channel", daemon=True).start()

    def watch(self, process: ProcessId) -> None:
        """Post `Ended` once, when the process has ended; it need not be a child."""
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.post(Ended(process))
            return
        if not is_alive(process):
            os.close(fd)
            self.post(Ended(process))
            return

        def loop() -> None:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            while not self._stopped.is_set():
                if poller.poll(1000):
                    self.post(Ended(process))
                    break
            os.close(fd)

        threading.Thread(target=loop, name=f"watch-{process.pid}", daemon=True).start()

    def close(self) -> None:
        self._stopped.set()
