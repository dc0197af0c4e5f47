"""One buffer while it is filled: which ranges are announced, what is checked, who still writes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from rmux.errors import BackendError, CheckError, RmuxError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import Progress
from rmux.sync.transport.checksum import RollingChecksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a flow announces before its first byte."""

    transfer_id: str
    send_id: str
    """Same for all flows of one send."""
    offset: int
    num_bytes: int
    chunk_bytes: int
    leading: bool
    """This flow brings the sender's checksum at the end."""
    wait_s: float
    """How long the sender is ready to wait for the buffer."""


class Flow(Protocol):
    def stop_reading(self) -> None:
        """Makes the flow end soon; called from any thread."""


class Incoming:
    """Filled by one send, or by several of disjoint ranges; the first error ends it."""

    def __init__(
        self,
        buffer: memoryview,
        *,
        transfer_id: str,
        deadline: Deadline,
        streams: int,
        progress: Progress | None,
    ) -> None:
        self.transfer_id = transfer_id
        self.deadline = deadline
        self._buffer = buffer
        self._streams = streams
        self._progress = progress
        self._ranges: dict[str, tuple[Hello, RollingChecksum]] = {}
        self._digests: dict[str, bytes] = {}
        self._flows: set[Flow] = set()
        self._error: RmuxError | None = None
        self._closed = False
        self._changed = threading.Condition()

    def join(self, flow: Flow, hello: Hello) -> RollingChecksum:
        """Lets a flow in; BackendError when its range does not fit or is somebody else's."""
        with self._changed:
            if self._closed or self._error is not None:
                raise BackendError(f"transfer {self.transfer_id} is over", code="sync.refused")
            if len(self._flows) >= self._streams:
                raise BackendError(f"more than {self._streams} flows", code="sync.refused")
            known = self._ranges.get(hello.send_id)
            if known is None:
                known = (hello, self._open_range(hello))
                self._ranges[hello.send_id] = known
            elif (hello.offset, hello.num_bytes) != (known[0].offset, known[0].num_bytes):
                raise BackendError("flows of one send disagree", code="sync.protocol")
            self._flows.add(flow)
            return known[1]

    def _open_range(self, hello: Hello) -> RollingChecksum:
        begin, end = hello.offset, hello.offset + hello.num_bytes
        if not (0 <= begin < end <= len(self._buffer)) or hello.chunk_bytes < 1:
            raise BackendError(
                f"bytes {begin} to {end} do not fit a buffer of {len(self._buffer)}",
                code="sync.refused",
            )
        for other, _ in self._ranges.values():
            if begin < other.offset + other.num_bytes and other.offset < end:
                raise BackendError(
                    f"bytes {begin} to {end} overlap another send", code="sync.refused"
                )
        whole = hello.num_bytes == len(self._buffer)
        return RollingChecksum(
            self._buffer[begin:end],
            chunk_bytes=hello.chunk_bytes,
            progress=self._progress if whole else None,
        )

    def leave(self, flow: Flow) -> None:
        """This flow touches the buffer no more."""
        with self._changed:
            self._flows.discard(flow)
            self._changed.notify_all()

    def settle(self, hello: Hello, *, ours: bytes, theirs: bytes) -> None:
        """A range is complete; CheckError when what arrived is not what was sent."""
        if ours != theirs:
            raise CheckError(
                f"bytes {hello.offset} to {hello.offset + hello.num_bytes} of transfer "
                f"{self.transfer_id} arrived damaged: xxh3_128 {ours.hex()}, sent {theirs.hex()}",
                code="sync.corrupted",
                hint="sync again; if it stays, check the memory and the network card",
            )
        with self._changed:
            self._digests[hello.send_id] = ours
            self._changed.notify_all()

    def fail(self, error: RmuxError) -> RmuxError:
        """The first error wins and is returned; no flow reads any further."""
        with self._changed:
            self._error = self._error or error
            self._stop()
            return self._error

    def wait(self) -> bytes | None:
        """Until every byte is checked: the digest when one send brought all, None when several."""
        with self._changed:
            while self._settled_bytes() < len(self._buffer):
                if self._error is not None:
                    raise self._error
                self._changed.wait(self.deadline.left_s())
            return next(iter(self._digests.values())) if len(self._digests) == 1 else None

    def _settled_bytes(self) -> int:
        return sum(self._ranges[send_id][0].num_bytes for send_id in self._digests)

    def finish(self) -> None:
        """Returns when nobody holds the buffer any more; cuts whoever still does."""
        with self._changed:
            self._closed = True
            self._error = self._error or UnreachableError(
                f"transfer {self.transfer_id} was given up", code="sync.peer-lost"
            )
            self._stop()
            while self._flows:
                self._changed.wait()
            for _, rolling in self._ranges.values():
                rolling.release()

    def _stop(self) -> None:
        assert self._error is not None
        for _, rolling in self._ranges.values():
            rolling.fail(self._error)
        for flow in self._flows:
            flow.stop_reading()
        self._changed.notify_all()
