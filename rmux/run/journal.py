"""Writes to the store behind a process's loop: a locked store delays no grant."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmux.errors import RmuxError, UnreachableError

if TYPE_CHECKING:
    from rmux.store.engine import Conn, Store

logger = logging.getLogger(__name__)

Operation = Callable[["Conn"], object]
Batch = tuple[int, Sequence[Operation]]

_MAX_BATCHES = 200
"""Written in one transaction."""
_PAUSE_S = 0.1


class Journal:
    """Batches in order, several to a transaction; `on_stored(n)` is called from its thread.

    An operation that the store refuses is dropped with a log line, alone: it was decided from a
    position the store has left since, and those behind it must not wait for it.
    """

    def __init__(self, store: Store, *, on_stored: Callable[[int], None] | None = None) -> None:
        self._store = store
        self._on_stored = on_stored or (lambda number: None)
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="journal", daemon=True)
        self._closing = threading.Event()
        self._thread.start()

    def put(self, number: int, operations: Sequence[Operation]) -> None:
        self._batches.put((number, operations))

    def close(self, *, timeout_s: float) -> bool:
        """Write what is left; False when that took longer than `timeout_s`."""
        self._batches.put(None)
        self._thread.join(timeout_s)
        self._closing.set()
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while True:
            batches, ends = self._collect()
            if batches:
                self._write(batches)
                self._on_stored(batches[-1][0])
            if ends:
                return

    def _collect(self) -> tuple[list[Batch], bool]:
        batches: list[Batch] = []
        first = self._batches.get()
        while first is not None:
            batches.append(first)
            if len(batches) == _MAX_BATCHES or self._batches.empty():
                return batches, False
            first = self._batches.get()
        return batches, True

    def _write(self, batches: list[Batch]) -> None:
        operations = [operation for _, batch in batches for operation in batch]
        if not self._apply(operations):
            for operation in operations:
                self._apply([operation], alone=True)

    def _apply(self, operations: Sequence[Operation], *, alone: bool = False) -> bool:
        while not self._closing.is_set():
            try:
                with self._store.write() as conn:
                    for operation in operations:
                        operation(conn)
                return True
            except UnreachableError as error:
                logger.warning("the store has to wait: %s", error.message)
                time.sleep(_PAUSE_S)
            except (RmuxError, ValueError, TypeError) as error:
                if alone:
                    logger.error("dropped a write that the store refuses: %s", error)
                return False
        return False
