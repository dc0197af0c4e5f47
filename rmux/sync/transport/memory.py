"""The transport within one process: same promises as TCP, a copy instead of sockets."""

from __future__ import annotations

import secrets
import threading
import time

from rmux.errors import BackendError, RmuxError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import (
    CHUNK_BYTES,
    MAX_STREAMS,
    Endpoint,
    Progress,
    TransferResult,
    as_bytes,
)
from rmux.sync.transport.buffers import Buffers
from rmux.sync.transport.checksum import RollingChecksum
from rmux.sync.transport.incoming import Hello, Incoming


class MemoryTransport:
    """Inboxes of one instance reach each other; `sent_bytes` counts what was copied, per inbox."""

    def __init__(self) -> None:
        self._inboxes: dict[Endpoint, MemoryInbox] = {}
        self.sent_bytes: dict[Endpoint, int] = {}
        self._lock = threading.Lock()

    def listen(self, address: str) -> MemoryInbox:
        with self._lock:
            port = len(self._inboxes) + 1
            endpoint = Endpoint(host=address, port=port, token=secrets.token_hex(16))
            inbox = MemoryInbox(endpoint)
            self._inboxes[endpoint] = inbox
            return inbox

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
        """As `Transport.send`; one flow, whatever `streams` says."""
        inbox = self._inbox(endpoint)
        hello = Hello(
            transfer_id=transfer_id,
            send_id=secrets.token_hex(8),
            offset=offset,
            num_bytes=memoryview(view).nbytes,
            chunk_bytes=chunk_bytes,
            leading=True,
            wait_s=deadline_s,
        )
        begun_s = time.monotonic()
        deadline = Deadline(deadline_s, what=f"sending transfer {transfer_id}")
        with as_bytes(view, writable=False) as data:
            copy = _Copy(data, hello=hello, deadline=deadline, progress=progress)
            digest = copy.run(inbox.buffers.awaited(hello))
        with self._lock:
            self.sent_bytes[endpoint] = self.sent_bytes.get(endpoint, 0) + hello.num_bytes
        return TransferResult(
            bytes=hello.num_bytes, seconds=time.monotonic() - begun_s, checksum=digest.hex()
        )

    def _inbox(self, endpoint: Endpoint) -> MemoryInbox:
        for known, inbox in self._inboxes.items():
            if known.address == endpoint.address:
                if known.token != endpoint.token:
                    raise BackendError(f"{known.address} has another token", code="sync.token")
                return inbox
        raise UnreachableError(f"nobody listens on {endpoint.address}", code="sync.peer-lost")


class MemoryInbox:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.buffers = Buffers()

    def endpoint(self) -> Endpoint:
        return self._endpoint

    def receive_into(
        self,
        buffer: memoryview,
        *,
        transfer_id: str,
        deadline_s: float,
        streams: int = MAX_STREAMS,
        progress: Progress | None = None,
    ) -> TransferResult:
        return self.buffers.receive_into(
            buffer,
            transfer_id=transfer_id,
            deadline_s=deadline_s,
            streams=streams,
            progress=progress,
        )

    def close(self) -> None:
        self.buffers.close()


class _Copy:
    """The one flow of a send."""

    def __init__(
        self, data: memoryview, *, hello: Hello, deadline: Deadline, progress: Progress | None
    ) -> None:
        self._data = data
        self._hello = hello
        self._deadline = deadline
        self._progress = progress
        self._stopped = False

    def stop_reading(self) -> None:
        self._stopped = True

    def run(self, incoming: Incoming) -> bytes:
        rolling = incoming.join(self, self._hello)
        ours = RollingChecksum(self._data, chunk_bytes=self._hello.chunk_bytes)
        try:
            for index in range(ours.num_chunks):
                if self._progress is not None:
                    self._progress.wait_for(ours.end_of(index), deadline=self._deadline)
                self._deadline.left_s()
                if self._stopped:
                    raise UnreachableError("the receiver gave up", code="sync.peer-lost")
                with ours.chunk(index) as source, rolling.take(index) as target:
                    target[:] = source
                ours.mark(index)
                rolling.mark(index)
            sent = ours.digest(deadline=self._deadline)
            arrived = rolling.digest(deadline=self._deadline)
            incoming.settle(self._hello, ours=arrived, theirs=sent)
            return sent
        except RmuxError as error:
            incoming.fail(error)
            raise
        finally:
            ours.release()
            incoming.leave(self)
