"""Host memory that an emulated job really holds: a state that must last, caches that need not.

The bytes follow from the job's seed, and each train phase changes some, so a state that came back
from disk wrong is noticed at once and not at the end.
"""

from __future__ import annotations

import mmap
import random
import threading
from pathlib import Path

import xxhash

from rmux.errors import WorkerError
from rmux.job import EmulatedSpec
from rmux.run.driver.engines import ShedKind, ShedReport

_PAGE_BYTES = 4096
_CHANGES = 64
"""Bytes of the state that a train phase overwrites."""


class Ballast:
    """Thread-safe. `spill` is refused between `use` and `rest`; everything else brings it back."""

    def __init__(self, spec: EmulatedSpec, *, seed: int, file: Path) -> None:
        self._spec, self._seed, self._file = spec, seed, file
        self._lock = threading.Lock()
        self._state: mmap.mmap | None = None
        self._cache: mmap.mmap | None = None
        self._size = 0
        """Of the state, wherever it is."""
        self._checksum = ""
        """Of the state on disk."""
        self._in_use = False

    @property
    def is_spilled(self) -> bool:
        return bool(self._checksum)

    def fill(self, *, steps: int) -> None:
        """The state after so many train phases, from nothing."""
        with self._lock:
            self._checksum = ""
            self._file.unlink(missing_ok=True)
            self._state = None
            for step in range(steps + 1):
                self._grow(step)

    def use(self) -> None:
        """A wake: the state is here, and caches are made."""
        with self._lock:
            self._in_use = True
            self._return()
            if self._cache is None and self._spec.cache_bytes:
                self._cache = _held(self._spec.cache_bytes)
                for page in range(0, self._spec.cache_bytes, _PAGE_BYTES):
                    self._cache[page] = 1

    def rest(self) -> None:
        with self._lock:
            self._in_use = False

    def step(self, step: int) -> None:
        """One train phase: the state changes and grows. `step` counts from 1."""
        with self._lock:
            self._return()
            self._grow(step)

    def checksum(self) -> str:
        """Of the state, in hex; empty for a job that holds none."""
        with self._lock:
            self._return()
            return "" if self._state is None else _checksum(self._state)

    def shed(self, what: ShedKind) -> ShedReport | None:
        with self._lock:
            if what is ShedKind.CACHES:
                cache, self._cache = self._cache, None
                freed_bytes = 0 if cache is None else len(cache)
                if cache is not None:
                    cache.close()
                return ShedReport(what=what, freed_bytes=freed_bytes)
            if self._in_use:
                return None
            return ShedReport(what=what, freed_bytes=self._spill())

    def _spill(self) -> int:
        state = self._state
        if state is None:
            return 0
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file.write_bytes(state)
        self._checksum, self._state = _checksum(state), None
        state.close()
        return self._size

    def _return(self) -> None:
        if not self._checksum:
            return
        state = _held(self._size)
        with self._file.open("rb") as file:
            file.readinto(state)
        if _checksum(state) != self._checksum:
            raise WorkerError(f"the spilled state in {self._file} is damaged", code="worker.spill")
        self._state, self._checksum = state, ""
        self._file.unlink()

    def _grow(self, step: int) -> None:
        """The state after that many train phases, from the one before."""
        size = self._spec.held_bytes + step * self._spec.leak_bytes
        if not size:
            return
        state, at = self._state, 0
        if state is None or len(state) < size:
            larger = _held(size)
            if state is not None:
                at = larger.write(state)
                state.close()
            state = larger
            for page in range(at, size, _PAGE_BYTES):
                state[page] = page % 251 + 1  # one byte of a page makes it resident
        rng = random.Random(f"{self._seed}/{step}")
        for _ in range(_CHANGES):
            state[rng.randrange(size)] = rng.randrange(256)
        self._state, self._size = state, size


def _held(size: int) -> mmap.mmap:
    """Memory of its own, which goes back to the host the moment it is closed."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _checksum(memory: mmap.mmap) -> str:
    return str(xxhash.xxh3_128(memory).hexdigest())
