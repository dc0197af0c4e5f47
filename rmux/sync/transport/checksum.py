"""A checksum that follows the filled front of a buffer, so that it costs no time at the end."""

from __future__ import annotations

import threading

import xxhash

from rmux.errors import BackendError, RmuxError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import Progress

DIGEST_BYTES = 16


def checksum(view: memoryview | bytes | bytearray) -> str:
    """xxh3_128 in hex."""
    return xxhash.xxh3_128(view).hexdigest()


class RollingChecksum:
    """xxh3_128 of a buffer whose chunks are done in any order, each once, by several threads."""

    def __init__(
        self, view: memoryview, *, chunk_bytes: int, progress: Progress | None = None
    ) -> None:
        self._view = view
        self._chunk_bytes = chunk_bytes
        self._progress = progress
        self.num_chunks = -(-len(view) // chunk_bytes)
        self._hash = xxhash.xxh3_128()
        self._taken: set[int] = set()
        self._done: set[int] = set()
        self._next = 0
        self._hashing = False
        self._error: RmuxError | None = None
        self._moved = threading.Condition()

    def end_of(self, index: int) -> int:
        """Byte after chunk `index`."""
        return min(len(self._view), (index + 1) * self._chunk_bytes)

    def chunk(self, index: int) -> memoryview:
        return self._view[index * self._chunk_bytes : self.end_of(index)]

    def take(self, index: int) -> memoryview:
        """The chunk to write to; BackendError when it does not exist or was taken before."""
        with self._moved:
            if not 0 <= index < self.num_chunks or index in self._taken:
                raise BackendError(
                    f"chunk {index} of {self.num_chunks} came twice or does not exist",
                    code="sync.protocol",
                )
            self._taken.add(index)
        return self.chunk(index)

    def mark(self, index: int) -> None:
        """Chunk `index` is done; hashes the front as far as it reaches, outside the lock."""
        with self._moved:
            self._done.add(index)
            if self._hashing:
                return
            self._hashing = True
        while True:
            with self._moved:
                if self._next not in self._done:
                    self._hashing = False
                    self._moved.notify_all()
                    return
                index = self._next
            with self.chunk(index) as part:
                self._hash.update(part)
            with self._moved:
                self._next = index + 1
                self._done.discard(index)
            if self._progress is not None:
                self._progress.advance(self.end_of(index))

    def fail(self, error: RmuxError) -> None:
        with self._moved:
            self._error = self._error or error
            self._moved.notify_all()

    def digest(self, *, deadline: Deadline) -> bytes:
        """Waits for the last chunk; raises what `fail` was given, or DeadlineError."""
        with self._moved:
            while self._next < self.num_chunks:
                if self._error is not None:
                    raise self._error
                self._moved.wait(deadline.left_s())
        return self._hash.digest()

    def release(self) -> None:
        """Lets go of the buffer, which its owner may then close."""
        self._view.release()
