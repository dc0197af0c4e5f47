"""A rank's parked state written to local disk and read back, bit by bit, whatever the ZeRO stage.

As with moves, a storage is emptied, not replaced, so every view of it has its values again
afterwards. A rank writes and reads its own file alone: no other rank has to take part.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rmux.errors import WorkerError
from rmux.run.host_memory import trim_heap
from rmux.run.workers.deepspeed import TrainRank

if TYPE_CHECKING:
    from torch import UntypedStorage

    from rmux.run.workers.train_engine import TrainEngine
    from rmux.run.workers.train_state_moved import OwnCopies
    from rmux.run.workers.train_terms import RankSettings


class SpillingRank(TrainRank):
    """A training rank whose parked state can wait on disk. Whatever needs it brings it back."""

    def __init__(self, settings: RankSettings) -> None:
        super().__init__(settings)
        self._disk = DiskCopy()
        self._in_use = False

    def wake(self) -> float:
        begun_s = time.monotonic()
        with self._busy:
            self._in_use = True
            if self._engine is not None:
                self._disk.regain()
            super().wake()
        return time.monotonic() - begun_s

    def park(self) -> float:
        with self._busy:
            seconds = super().park()
            self._in_use = False
            return seconds

    def spill(self, folder: str) -> int | None:
        """Write the parked state below `folder` and give its memory back; bytes, None while the
        rank is awake. OSError when the disk refuses: nothing has changed then."""
        with self._busy:
            if self._in_use or self._engine is None:
                return None
            path = Path(folder) / f"rank-{self._settings.rank:04d}.state"
            return self._disk.spill(self._engine.state.copies, path)

    def drop_caches(self) -> int:
        """Give back buffers that the next move would use again; returns bytes."""
        with self._busy:
            if self._engine is None or self._engine.state.copies.are_out:
                return 0
            buffers = self._engine.state.copies._buffers
            freed_bytes = int(sum(buffer.numel() for buffer in buffers.values()))
            buffers.clear()
            trim_heap()
            return freed_bytes

    def _ready(self) -> TrainEngine:
        engine = super()._ready()
        with self._busy:
            self._disk.regain()
        return engine


class DiskCopy:
    """Of one rank's state. Not for use from several threads."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._checksum = ""
        self._emptied: list[tuple[UntypedStorage, int]] = []

    def spill(self, copies: OwnCopies, file: Path) -> int:
        """Write all of it and give its memory back; returns bytes, 0 when it is out already."""
        import xxhash

        if self._file is not None:
            return 0
        storages, digest = _held(copies), xxhash.xxh3_128()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            fd = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            with os.fdopen(fd, "wb") as written:
                for storage in storages:
                    view = _bytes_of(storage)
                    digest.update(view)
                    written.write(view)
        except OSError:
            file.unlink(missing_ok=True)
            raise
        self._file, self._checksum = file, digest.hexdigest()
        self._emptied = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)
        trim_heap()
        return sum(size for _, size in self._emptied)

    def regain(self) -> None:
        """Read it back if it is out. WorkerError 'worker.spill' when it is not what was written."""
        import xxhash

        if self._file is None:
            return
        file, digest = self._file, xxhash.xxh3_128()
        with file.open("rb") as kept:
            for storage, size in self._emptied:
                storage.resize_(size)
                view = _bytes_of(storage)
                kept.readinto(view)
                digest.update(view)
        if digest.hexdigest() != self._checksum:
            raise WorkerError(
                f"the spilled state in {file} is damaged",
                code="worker.spill",
                hint="the next attempt goes on from the last checkpoint",
            )
        self._file, self._emptied = None, []
        file.unlink(missing_ok=True)


def _held(copies: OwnCopies) -> list[UntypedStorage]:
    """Where the state lies in host memory now: moved there, or in place on the CPU."""
    moved = [buffer.untyped_storage() for _, buffer in copies._out]
    return moved or copies._storages()


def _bytes_of(storage: UntypedStorage) -> memoryview:
    """Valid until the storage is resized. Torch never empties one that numpy has seen."""
    size = storage.nbytes()
    return memoryview((ctypes.c_ubyte * size).from_address(storage.data_ptr())).cast("B")
