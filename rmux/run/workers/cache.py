"""The host weight cache of one job on one rollout node: what a sync writes and a wake reads.

Two slots in shared memory, owned by one process. A version is received into the slot that is not
current, checked, and only then named in the `current` file, by a rename: nobody can read half of
one. Every version is a new file, so a reader that still maps an older one keeps it whole.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import mmap
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmux.errors import CheckError, ConflictError, RmuxError, UnavailableError, WorkerError
from rmux.sync.transport.tcp import Receiver

if TYPE_CHECKING:
    from torch import Tensor

_SHM = Path("/dev/shm")
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEntry:
    """One tensor of a blob: its checkpoint name and where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedWeights:
    """A complete version. `checksum` is the xxh3_128 of the whole blob, in hex."""

    version: int
    slot: int
    num_bytes: int
    checksum: str
    entries: tuple[WeightEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFiles:
    """Names of a cache's shared memory, known before any of it exists."""

    stem: str

    @staticmethod
    def of(run_tag: str, node: str) -> CacheFiles:
        return CacheFiles(stem=re.sub(r"[^A-Za-z0-9._-]", "_", f"{run_tag}-{node}-weights"))

    def slot(self, index: int) -> Path:
        return _SHM / f"{self.stem}.{index}"

    @property
    def current(self) -> Path:
        return _SHM / f"{self.stem}.current"

    @property
    def following(self) -> Path:
        return _SHM / f"{self.stem}.next"

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.slot(0), self.slot(1), self.current, self.following)


class HostWeightCache:
    """Ray actor. A sender calls `begin`, sends to `endpoint`, and calls `commit`."""

    def __init__(self, *, run_tag: str, node: str, address: str = "127.0.0.1") -> None:
        self._files = CacheFiles.of(run_tag, node)
        self._address = address
        self._receiver = Receiver(address)
        self._lock = threading.Lock()
        self._incoming: _Incoming | None = None
        self._current: CachedWeights | None = None

    def pid(self) -> int:
        return os.getpid()

    def endpoint(self) -> str:
        """'host:port#token' for rmux.sync.transport.Endpoint.parse; it carries a secret.

        Ask after every `begin`: dropping an unfinished version changes it.
        """
        with self._lock:
            return self._receiver.endpoint().text

    def begin(
        self,
        version: int,
        entries: Sequence[WeightEntry],
        *,
        num_bytes: int | None = None,
        deadline_s: float = 300.0,
    ) -> str:
        """Make room for a version and wait for its bytes; returns the name of the transfer.

        What an earlier `begin` left unfinished is dropped. UnavailableError when shared memory is
        full, CheckError for entries that describe no blob. `num_bytes`: by default the end of the
        last tensor.
        """
        blob_bytes = _check_entries(entries, num_bytes)
        with self._lock:
            if self._incoming is not None:
                # Cuts flows of the dropped transfer, so that its name can be used again.
                self._receiver.close()
                self._receiver = Receiver(self._address)
                self._drop_incoming()
            slot = 1 - self._current.slot if self._current is not None else 0
            weights = CachedWeights(
                version=version,
                slot=slot,
                num_bytes=blob_bytes,
                checksum="",
                entries=tuple(entries),
            )
            self._incoming = _Incoming(weights, path=self._files.slot(slot))
            self._incoming.start(self._receiver, deadline_s=deadline_s)
            return self._incoming.transfer_id

    def commit(self, version: int, checksum: str, *, timeout_s: float = 300.0) -> CachedWeights:
        """Make the version current, once it has arrived whole and its checksum agrees.

        ConflictError when another version is being received, CheckError when the bytes differ.
        """
        with self._lock:
            incoming = self._incoming
            if incoming is None or incoming.weights.version != version:
                raise ConflictError(f"weight version {version} is not being received")
        received = incoming.wait(timeout_s)
        if received != checksum:
            raise CheckError(
                f"weight version {version} arrived with checksum {received}, {checksum} was sent",
                code="sync.checksum",
            )
        with self._lock:
            if self._incoming is not incoming:
                raise ConflictError(f"weight version {version} was replaced by a newer transfer")
            self._incoming = None
            incoming.close()
            self._current = dataclasses.replace(incoming.weights, checksum=checksum)
            self._announce(self._current)
            return self._current

    def current(self) -> CachedWeights | None:
        return self._current

    def resident_bytes(self) -> int:
        """Shared memory held now."""
        return sum(path.stat().st_blocks * 512 for path in self._files.all if path.exists())

    def drop_older(self) -> int:
        """Remove the version before the current one, which the next sync overwrites anyway; bytes.

        Whoever still maps it keeps it.
        """
        with self._lock:
            if self._current is None or self._incoming is not None:
                return 0
            path = self._files.slot(1 - self._current.slot)
            if not path.exists():
                return 0
            freed_bytes = path.stat().st_blocks * 512
            path.unlink()
            return freed_bytes

    def close(self) -> None:
        """Stop listening and remove the shared memory."""
        self._receiver.close()
        with self._lock:
            self._drop_incoming()
            self._current = None
            for path in self._files.all:
                path.unlink(missing_ok=True)

    def _announce(self, weights: CachedWeights) -> None:
        text = json.dumps(dataclasses.asdict(weights))
        self._files.following.unlink(missing_ok=True)
        fd = os.open(self._files.following, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        self._files.following.rename(self._files.current)

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming.path.unlink(missing_ok=True)
            self._incoming = None


class _Incoming:
    """One version on its way into a slot."""

    def __init__(self, weights: CachedWeights, *, path: Path) -> None:
        self.weights = weights
        self.path = path
        self.transfer_id = f"weights-{weights.version}"
        self._map = self._create()
        self._done = threading.Event()
        self._checksum = ""
        self._error: RmuxError | None = None

    def _create(self) -> mmap.mmap:
        self.path.unlink(missing_ok=True)
        fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            # A plain truncate would answer a full file system with SIGBUS in mid-transfer.
            os.posix_fallocate(fd, 0, self.weights.num_bytes)
            return mmap.mmap(fd, self.weights.num_bytes)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            if error.errno != errno.ENOSPC:
                raise
            raise UnavailableError(
                f"no {self.weights.num_bytes} bytes of shared memory for a weight version",
                code="resource.shared-memory",
            ) from error
        finally:
            os.close(fd)

    def start(self, receiver: Receiver, *, deadline_s: float) -> None:
        def receive() -> None:
            try:
                result = receiver.receive_into(
                    memoryview(self._map), transfer_id=self.transfer_id, deadline_s=deadline_s
                )
                self._checksum = result.checksum
            except RmuxError as error:
                self._error = error
            finally:
                self._done.set()

        threading.Thread(target=receive, name=self.transfer_id, daemon=True).start()

    def wait(self, timeout_s: float) -> str:
        """The checksum of what arrived."""
        if not self._done.wait(timeout_s):
            raise WorkerError(
                f"{self.transfer_id} did not arrive within {timeout_s:g} s", code="sync.late"
            )
        if self._error is not None:
            raise self._error
        return self._checksum

    def close(self) -> None:
        try:
            self._map.close()
        except BufferError:
            pass  # the receiving thread still holds it; the file is dropped by its name


def read_current(files: CacheFiles) -> CachedWeights | None:
    """The complete version of a cache, None before the first."""
    try:
        raw: dict[str, Any] = json.loads(files.current.read_text())
    except FileNotFoundError:
        return None
    entries = tuple(
        WeightEntry(**{**entry, "shape": tuple(entry["shape"])}) for entry in raw.pop("entries")
    )
    return CachedWeights(**raw, entries=entries)


def open_tensors(files: CacheFiles) -> tuple[CachedWeights, dict[str, Tensor]]:
    """The current version as tensors over the shared memory itself: no copy.

    Writing to them changes a private page, never the cache. WorkerError when there is no version.
    """
    import torch

    for _ in range(100):
        weights = read_current(files)
        if weights is None:
            raise WorkerError(f"the weight cache {files.stem} is empty", code="sync.empty")
        try:
            fd = os.open(files.slot(weights.slot), os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            if read_current(files) != weights:
                continue  # the slot may have been given to another version before it was opened
            storage = torch.UntypedStorage.from_file(
                f"/proc/self/fd/{fd}", shared=False, nbytes=weights.num_bytes
            )
        finally:
            os.close(fd)
        return weights, {entry.name: _view(storage, entry) for entry in weights.entries}
    raise WorkerError(f"the weight cache {files.stem} never held still", code="sync.unstable")


def checked(weights: CachedWeights, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `open_tensors` in order, each hashed as it is handed out.

    CheckError at the end when the blob is not what was committed: whoever took the tensors in must
    not use them. To hash and to load in one pass costs memory bandwidth once.
    """
    import torch
    import xxhash

    digest, at = xxhash.xxh3_128(), 0
    storage = next(iter(tensors.values())).untyped_storage()
    blob = memoryview(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
    for entry in sorted(weights.entries, key=lambda entry: entry.offset):
        end = max(at, entry.offset + entry.num_bytes)
        digest.update(blob[at:end])
        at = end
        yield entry.name, tensors[entry.name]
    digest.update(blob[at:])
    if (found := digest.hexdigest()) != weights.checksum:
        raise CheckError(
            f"weight version {weights.version} in the host cache has checksum {found}, "
            f"{weights.checksum} was committed",
            code="sync.checksum",
        )


def _check_entries(entries: Sequence[WeightEntry], num_bytes: int | None) -> int:
    """Bytes of the blob."""
    for entry in entries:
        item_bytes = _ITEM_BYTES.get(entry.dtype)
        if item_bytes is None or entry.offset < 0 or entry.offset % item_bytes:
            raise CheckError(
                f"{entry.name}: no tensor of {entry.dtype} can lie at byte {entry.offset}",
                code="sync.manifest",
            )
    end = max((entry.offset + entry.num_bytes for entry in entries), default=0)
    if end == 0 or (num_bytes is not None and num_bytes < end):
        raise CheckError(
            f"{len(entries)} tensors end at byte {end} of {num_bytes}", code="sync.manifest"
        )
    return end if num_bytes is None else num_bytes


def _view(storage: Any, entry: WeightEntry) -> Tensor:
    import torch

    tensor = torch.empty(0, dtype=getattr(torch, entry.dtype))
    strides: list[int] = []
    step = 1
    for size in reversed(entry.shape):
        strides.insert(0, step)
        step *= size
    return tensor.set_(storage, entry.offset // tensor.element_size(), entry.shape, tuple(strides))
