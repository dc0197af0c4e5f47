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

from rmux.errors import RmuxError, UnavailableError
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
from rmux.sync.transport.checksum import DIGEST_BYTES, RollingChecksum
from rmux.sync.transport.incoming import Hello
from rmux.sync.transport.outgoing import Outgoing
from rmux.sync.transport.wire import END, Wire

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_MAX_CONNECTIONS = 1024
"""Across all transfers of a receiver, strangers included."""

_ACCEPT_PAUSE_S = 0.05
"""After an accept that failed for want of file descriptors or memory."""


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
        self._buffers = Buffers()
        self._lock = threading.Lock()
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
        return self._buffers.receive_into(
            buffer,
            transfer_id=transfer_id,
            deadline_s=deadline_s,
            streams=streams,
            progress=progress,
        )

    def close(self) -> None:
        """Cuts what is in flight; a waiting `receive_into` raises UnreachableError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            wires, threads = list(self._wires), list(self._threads)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._buffers.close()
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

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, source = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    _log.warning("cannot accept a flow: %s", error)
                    time.sleep(_ACCEPT_PAUSE_S)
                continue
            self._welcome(sock, peer=f"{source[0]}:{source[1]}")

    def _welcome(self, sock: socket.socket, *, peer: str) -> None:
        deadline = Deadline(_HANDSHAKE_S, what=f"greeting {peer}")
        with self._lock:
            if self._closed or len(self._wires) >= _MAX_CONNECTIONS:
                sock.close()
                return
            try:
                wire = Wire(sock, peer=peer, deadline=deadline)
            except OSError:
                sock.close()  # it went away before it said anything
                return
            thread = threading.Thread(
                target=self._serve, args=(wire,), name="sync-serve", daemon=True
            )
            self._wires.add(wire)
            self._threads.add(thread)
            thread.start()

    def _serve(self, wire: Wire) -> None:
        try:
            self._flow(wire)
        except RmuxError as error:
            _log.info("a flow from %s ended: %s", wire.peer, error)
            wire.refuse(error)
        finally:
            wire.close()
            with self._lock:
                self._wires.discard(wire)
                self._threads.discard(threading.current_thread())

    def _flow(self, wire: Wire) -> None:
        hello, proof = wire.meet(token=self._endpoint.token)
        incoming = self._buffers.awaited(hello)
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


class TcpTransport:
    """`Receiver` and `send` behind the `Transport` seam."""

    def listen(self, address: str) -> Receiver:
        return Receiver(address)

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
        return send(
            endpoint,
            view,
            transfer_id=transfer_id,
            offset=offset,
            streams=streams,
            chunk_bytes=chunk_bytes,
            deadline_s=deadline_s,
            progress=progress,
        )
