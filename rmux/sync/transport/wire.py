"""One TCP connection of a transfer: framed, under a deadline, its errors naming the peer.

Handshake: the receiver sends a nonce; the sender its hello with an HMAC over both under the
token; the receiver answers with an HMAC of its own, or with an error. So neither end moves a byte
of weights to or from somebody who does not hold the token.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from dataclasses import asdict

from rmux.errors import BackendError, CheckError, RmuxError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.incoming import Hello

_NONCE_BYTES = 16
_MAC_BYTES = 32
_MAX_DOCUMENT_BYTES = 4096
_INDEX = struct.Struct("!Q")
_LENGTH = struct.Struct("!H")
END = 2**64 - 1
"""Stands for the index of a chunk when a flow has no more."""

LAST_WORDS_S = 0.5
"""How long a sender looks for the reason after its connection broke."""


class Wire:
    def __init__(self, sock: socket.socket, *, peer: str, deadline: Deadline) -> None:
        self._sock = sock
        self.peer = peer
        self.deadline = deadline
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)

    @staticmethod
    def connect(host: str, port: int, *, deadline: Deadline) -> Wire:
        peer = f"{host}:{port}"
        try:
            sock = socket.create_connection((host, port), timeout=deadline.left_s())
        except OSError as error:
            deadline.left_s()
            raise _lost(peer, error) from error
        return Wire(sock, peer=peer, deadline=deadline)

    def send(self, data: bytes | memoryview, *, more: bool = False) -> None:
        try:
            self._sock.settimeout(self.deadline.left_s())
            self._sock.sendall(data, socket.MSG_MORE if more else 0)
        except OSError as error:
            self.deadline.left_s()
            raise _lost(self.peer, error) from error

    def receive_into(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            try:
                self._sock.settimeout(self.deadline.left_s())
                count = self._sock.recv_into(view[filled:])
            except OSError as error:
                self.deadline.left_s()
                raise _lost(self.peer, error) from error
            if count == 0:
                raise _lost(self.peer, "it closed the connection")
            filled += count

    def receive(self, count: int) -> bytes:
        data = bytearray(count)
        with memoryview(data) as view:
            self.receive_into(view)
        return bytes(data)

    def send_index(self, index: int, *, more: bool) -> None:
        self.send(_INDEX.pack(index), more=more)

    def receive_index(self) -> int:
        return int(_INDEX.unpack(self.receive(_INDEX.size))[0])

    def send_answer(self, answer: dict[str, str]) -> None:
        self._send_sized(json.dumps(answer).encode()[:_MAX_DOCUMENT_BYTES])

    def receive_answer(self) -> dict[str, str]:
        """The peer's answer; the error it reports is raised as ours."""
        answer: dict[str, str] = json.loads(self._receive_sized())
        if "error" in answer:
            kind = CheckError if answer["code"] == "sync.corrupted" else BackendError
            raise kind(f"{self.peer} refused: {answer['error']}", code=answer["code"])
        return answer

    def last_words(self) -> None:
        """Raises the reason if the peer left one before it hung up; else does nothing."""
        self.deadline = Deadline(LAST_WORDS_S, what="reading the reason")
        try:
            self.receive_answer()
        except (UnreachableError, ValueError):
            pass  # it died without a word

    def greet(self, hello: Hello, *, token: str) -> None:
        """The sender's half of the handshake; BackendError when it is refused."""
        nonce = self.receive(_NONCE_BYTES)
        data = json.dumps(asdict(hello)).encode()
        self._send_sized(data, more=True)
        self.send(_proof(token, b"hello", nonce, data))
        answer = self.receive_answer()
        if not hmac.compare_digest(answer.get("proof", ""), _go(token, nonce, data)):
            raise BackendError(f"{self.peer} does not know the token", code="sync.token")

    def meet(self, *, token: str) -> tuple[Hello, str]:
        """The receiver's half: the hello and the proof to answer with, once it is welcome."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self.send(nonce)
        data = self._receive_sized()
        if not hmac.compare_digest(self.receive(_MAC_BYTES), _proof(token, b"hello", nonce, data)):
            raise BackendError(f"{self.peer} does not know the token", code="sync.token")
        try:
            return Hello(**json.loads(data)), _go(token, nonce, data)
        except (TypeError, ValueError) as error:
            raise BackendError(
                f"{self.peer} speaks another version", code="sync.protocol"
            ) from error

    def refuse(self, error: RmuxError) -> None:
        """Tells the peer why, as far as it still listens."""
        try:
            self.send_answer({"error": error.message, "code": error.code})
        except RmuxError:
            pass  # it has gone; the error that is being handled says so

    def abort(self) -> None:
        """Wakes whoever is blocked on this connection, from any thread."""
        self._shut(socket.SHUT_RDWR)

    def stop_reading(self) -> None:
        """As `abort`, but the reason can still be sent."""
        self._shut(socket.SHUT_RD)

    def _shut(self, how: int) -> None:
        try:
            self._sock.shutdown(how)
        except OSError:
            pass  # closed already

    def close(self) -> None:
        self._sock.close()

    def _send_sized(self, data: bytes, *, more: bool = False) -> None:
        self.send(_LENGTH.pack(len(data)) + data, more=more)

    def _receive_sized(self) -> bytes:
        (count,) = _LENGTH.unpack(self.receive(_LENGTH.size))
        if count > _MAX_DOCUMENT_BYTES:
            raise BackendError(f"{self.peer} does not speak this protocol", code="sync.protocol")
        return self.receive(count)


def _proof(token: str, *parts: bytes) -> bytes:
    return hmac.digest(token.encode(), b"".join(parts), "sha256")


def _go(token: str, nonce: bytes, hello: bytes) -> str:
    return _proof(token, b"go", nonce, hello).hex()


def _lost(peer: str, why: object) -> UnreachableError:
    return UnreachableError(
        f"lost {peer} during a transfer: {why}",
        code="sync.peer-lost",
        hint="see whether that process is alive, then sync again",
        details={"peer": peer},
    )
