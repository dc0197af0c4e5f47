"""What every transport of weights does: fill a buffer of one process from another's."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

from rmux.errors import RmuxError, UserError
from rmux.sync.deadline import Deadline

CHUNK_BYTES = 2**20
"""Unit of striping, of forwarding and of progress."""

MAX_STREAMS = 64
"""Flows one receiving buffer has open at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a receiver listens, and the secret without which nobody writes there."""

    host: str
    port: int
    token: str = field(repr=False)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        """'host:port#token', for a message; it carries the secret, so never log it."""
        return f"{self.address}#{self.token}"

    @staticmethod
    def parse(text: str) -> Endpoint:
        """Reads `text` back; UserError when it is none."""
        address, _, token = text.rpartition("#")
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not token:
            raise UserError("an endpoint is written host:port#token")
        return Endpoint(host=host, port=int(port), token=token)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResult:
    """What arrived, checked on both ends. `checksum` is the xxh3_128 of these bytes, in hex."""

    bytes: int
    seconds: float
    checksum: str


class Progress:
    """How far a buffer is filled from its start, so that it can be forwarded while it arrives."""

    def __init__(self) -> None:
        self._filled_bytes = 0
        self._error: RmuxError | None = None
        self._moved = threading.Condition()

    @property
    def filled_bytes(self) -> int:
        return self._filled_bytes

    def advance(self, filled_bytes: int) -> None:
        with self._moved:
            self._filled_bytes = max(self._filled_bytes, filled_bytes)
            self._moved.notify_all()

    def fail(self, error: RmuxError) -> None:
        """Every waiter gets `error`, now and later."""
        with self._moved:
            self._error = self._error or error
            self._moved.notify_all()

    def wait_for(self, filled_bytes: int, *, deadline: Deadline) -> None:
        """Returns once so much is there; raises what the filling raised, or DeadlineError."""
        with self._moved:
            while self._filled_bytes < filled_bytes:
                if self._error is not None:
                    raise self._error
                self._moved.wait(deadline.left_s())


class Inbox(Protocol):
    """The receiving end: any number of transfers at a time, from any thread."""

    def endpoint(self) -> Endpoint: ...

    def receive_into(
        self,
        buffer: memoryview,
        *,
        transfer_id: str,
        deadline_s: float,
        streams: int = MAX_STREAMS,
        progress: Progress | None = None,
    ) -> TransferResult:
        """Returns when every byte of `buffer` has been written once and checked.

        `streams` bounds the flows open at a time. DeadlineError, UnreachableError when a sender
        dies, CheckError when a checksum differs; after any of them nobody writes there any more.
        """

    def close(self) -> None: ...


class Transport(Protocol):
    def listen(self, address: str) -> Inbox:
        """A new inbox on this address, with a token of its own."""

    def send(
        self,
        endpoint: Endpoint,
        view: memoryview,
        *,
        transfer_id: str,
        offset: int = 0,
        streams: int = 1,
        chunk_bytes: int = CHUNK_BYTES,
        deadline_s: float,
        progress: Progress | None = None,
    ) -> TransferResult:
        """Writes `view` at byte `offset` of the buffer waiting under `transfer_id`.

        Returns when the receiver has checked it. With `progress`, a chunk leaves only when that
        much of `view` is filled. Errors as in `Inbox.receive_into`; BackendError when refused.
        """


def as_bytes(buffer: memoryview, *, writable: bool) -> memoryview:
    """`buffer` as flat bytes; UserError when it is empty, scattered, or not `writable` as asked."""
    with memoryview(buffer) as view:
        if view.nbytes == 0:
            raise UserError("a transfer has at least one byte")
        if not view.c_contiguous:
            raise UserError("a transfer needs one contiguous buffer")
        if writable and view.readonly:
            raise UserError("the receiving buffer is read-only")
        return view.cast("B")
