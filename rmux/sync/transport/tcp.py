"""Host memory to host memory over plain TCP, striped over several flows and checked at both ends.

    receiver = Receiver("10.0.0.7")         # a free port; a fresh token
    endpoint = receiver.endpoint()          # Endpoint(host, port, token); .text and .parse
    receiver.receive_into(buffer, *, transfer_id, deadline_s, streams=64, progress=None)
    receiver.close()                        # also a context manager

    send(endpoint, view, *, transfer_id, offset=0, streams=1, chunk_bytes=1 MiB, deadline_s,
         progress=None) -> TransferResult(bytes, seconds, checksum)

`deadline_s` is seconds from the call. `receive_into` blocks in its own thread until the whole of
`buffer` is written and checked, by one `send` or by several of disjoint ranges (`offset`). `send`
may be called before `receive_into`: it waits for the buffer. Both raise DeadlineError,
UnreachableError (peer died), BackendError (refused: token, range), CheckError (bytes damaged).
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Self

from rmux.errors import ConflictError, RmuxError, UnavailableError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import (
    CHUNK_BYTES,
    MAX_STREAMS,
    Endpoint,
    Progress,
    TransferResult,
    as_bytes,
)
from rmux.sync.transport.checksum import DIGEST_BYTES, RollingChecksum, checksum
from rmux.sync.transport.incoming import Incoming
from rmux.sync.transport.outgoing import Outgoing
from rmux.sync.transport.wire import END, Hello, Wire

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_MAX_CONNECTIONS = 1024
"""Across all transfers of a receiver, strangers included."""


class Receiver:
    """Listens on a free port of `address` until closed. UnavailableError when it cannot."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, 0), family=family, backlog=256)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {address}: {error}") from error
        self._endpoint = Endpoint(
            host=address, port=self._listener.getsockname()[1], token=secrets.token_hex(16)
        )
        self._incoming: dict[str, Incoming] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._wires: set[Wire] = set()
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name="sync-accept", daemon=True)
        self._acceptor.start()

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

    def close(self) -> None:
        """Cuts what is in flight; a waiting `receive_into` raises UnreachableError."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            pending = list(self._incoming.values())
            wires, threads = list(self._wires), list(self._threads)
            self._changed.notify_all()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for incoming in pending:
            incoming.fail(UnreachableError("the receiver was closed", code="sync.peer-lost"))
        for wire in wires:
            wire.abort()
        for thread in (self._acceptor, *threads):
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _register(self, incoming: Incoming) -> None:
        with self._changed:
            if self._closed:
                raise UnreachableError("the receiver was closed", code="sync.peer-lost")
            if incoming.transfer_id in self._incoming:
                raise ConflictError(f"transfer {incoming.transfer_id} is being received already")
            self._incoming[incoming.transfer_id] = incoming
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                sock, source = self._listener.accept()
            except OSError:
                return  # closed
            peer = f"{source[0]}:{source[1]}"
            wire = Wire(sock, peer=peer, deadline=Deadline(_HANDSHAKE_S, what=f"greeting {peer}"))
            thread = threading.Thread(target=self._serve, args=(wire,), daemon=True)
            with self._changed:
                welcome = not self._closed and len(self._wires) < _MAX_CONNECTIONS
                if welcome:
                    self._wires.add(wire)
                    self._threads.add(thread)
            if welcome:
                thread.start()
            else:
                wire.close()

    def _serve(self, wire: Wire) -> None:
        try:
            self._flow(wire)
        except RmuxError as error:
            _log.info("a flow from %s ended: %s", wire.peer, error)
            wire.refuse(error)
        finally:
            wire.close()
            with self._changed:
                self._wires.discard(wire)
                self._threads.discard(threading.current_thread())

    def _flow(self, wire: Wire) -> None:
        hello, proof = wire.meet(token=self._endpoint.token)
        incoming = self._awaited(hello)
        wire.deadline = incoming.deadline
        rolling = incoming.join(wire, hello)
        answer = {}
        try:
            wire.send_answer({"proof": proof})
            while (index := wire.receive_index()) != END:
                with rolling.take(index) as part:
                    wire.receive_into(part)
                rolling.mark(index)
            if hello.leading:
                theirs = wire.receive(DIGEST_BYTES)
                ours = rolling.digest(deadline=incoming.deadline)
                answer = {"checksum": ours.hex()}
                incoming.settle(hello, ours=ours, theirs=theirs)
        except RmuxError as error:
            _log.info("transfer %s from %s failed: %s", hello.transfer_id, wire.peer, error)
            wire.refuse(incoming.fail(error))
            return
        finally:
            incoming.leave(wire)
        if answer:
            wire.send_answer(answer)

    def _awaited(self, hello: Hello) -> Incoming:
        deadline = Deadline(hello.wait_s, what=f"waiting for the buffer of {hello.transfer_id}")
        with self._changed:
            while hello.transfer_id not in self._incoming:
                if self._closed:
                    raise UnreachableError("the receiver was closed", code="sync.peer-lost")
                self._changed.wait(deadline.left_s())
            return self._incoming[hello.transfer_id]


def send(
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
    """Writes `view` at byte `offset` of the buffer that waits under `transfer_id`.

    Returns when the receiver has checked it; see the module for the errors.
    """
    data = as_bytes(view, writable=False)
    what = f"sending transfer {transfer_id} to {endpoint.address}"
    outgoing = Outgoing(
        endpoint,
        RollingChecksum(data, chunk_bytes=chunk_bytes),
        hello=Hello(
            transfer_id=transfer_id,
            send_id=secrets.token_hex(8),
            offset=offset,
            num_bytes=len(data),
            chunk_bytes=chunk_bytes,
            leading=True,
            wait_s=deadline_s,
        ),
        deadline=Deadline(deadline_s, what=what),
        progress=progress,
    )
    begun_s, num_bytes = time.monotonic(), len(data)
    with data:
        digest = outgoing.run(streams)
    return TransferResult(
        bytes=num_bytes, seconds=time.monotonic() - begun_s, checksum=digest.hex()
    )
