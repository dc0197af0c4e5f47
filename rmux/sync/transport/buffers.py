"""The buffers of one process that wait to be filled, whatever brings the bytes."""

from __future__ import annotations

import threading
import time

from rmux.errors import ConflictError, RmuxError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import Progress, TransferResult, as_bytes
from rmux.sync.transport.checksum import checksum
from rmux.sync.transport.incoming import Hello, Incoming


class Buffers:
    def __init__(self) -> None:
        self._incoming: dict[str, Incoming] = {}
        self._changed = threading.Condition()
        self._closed = False

    def receive_into(
        self,
        buffer: memoryview,
        *,
        transfer_id: str,
        deadline_s: float,
        streams: int,
        progress: Progress | None,
    ) -> TransferResult:
        """As `Inbox.receive_into`; ConflictError when this transfer is being received already."""
        view = as_bytes(buffer, writable=True)
        incoming = Incoming(
            view,
            transfer_id=transfer_id,
            deadline=Deadline(deadline_s, what=f"receiving transfer {transfer_id}"),
            streams=streams,
            progress=progress,
        )
        begun_s = time.monotonic()
        with view:
            self._register(incoming)
            try:
                digest = incoming.wait()
            except RmuxError as error:
                incoming.fail(error)
                if progress is not None:
                    progress.fail(error)
                raise
            finally:
                with self._changed:
                    del self._incoming[transfer_id]
                incoming.finish()
            if progress is not None:
                progress.advance(len(view))
            return TransferResult(
                bytes=len(view),
                seconds=time.monotonic() - begun_s,
                checksum=digest.hex() if digest is not None else checksum(view),
            )

    def awaited(self, hello: Hello) -> Incoming:
        """The buffer this hello is for, as soon as it waits; DeadlineError after `hello.wait_s`."""
        deadline = Deadline(hello.wait_s, what=f"waiting for the buffer of {hello.transfer_id}")
        with self._changed:
            while hello.transfer_id not in self._incoming:
                self._check_open()
                self._changed.wait(deadline.left_s())
            return self._incoming[hello.transfer_id]

    def close(self) -> None:
        """Every waiting `receive_into` and `awaited` raises UnreachableError."""
        with self._changed:
            self._closed = True
            pending = list(self._incoming.values())
            self._changed.notify_all()
        for incoming in pending:
            incoming.fail(_closed())

    def _register(self, incoming: Incoming) -> None:
        with self._changed:
            self._check_open()
            if incoming.transfer_id in self._incoming:
                raise ConflictError(f"transfer {incoming.transfer_id} is being received already")
            self._incoming[incoming.transfer_id] = incoming
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()


def _closed() -> UnreachableError:
    return UnreachableError("the receiver was closed", code="sync.peer-lost")
