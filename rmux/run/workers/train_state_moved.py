"""A rank's state moved to host memory of its own and back, whatever the ZeRO stage.

A storage is emptied, not replaced: every view of it stays what it was and has its values again when
they return. So nothing of DeepSpeed's has to know, and all of the device memory is given back.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, UntypedStorage

from rmux.errors import BackendError, ConflictError

_LARGE_PAGE_BYTES = 2 * 2**20
_LIBC = ctypes.CDLL(None)


class OwnCopies:
    """Host buffers, page-locked where a GPU copies from them; made at the first move and kept.

    `tensors` lists the state at an optimizer-step boundary; views of one storage count once.
    """

    def __init__(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        self._tensors = tensors
        self._buffers: dict[int, Tensor] = {}
        self._out: list[tuple[UntypedStorage, Tensor]] = []

    @property
    def are_out(self) -> bool:
        return bool(self._out)

    def move_out(self) -> int:
        """Copy to the host and give the device memory back; returns bytes.

        ConflictError twice in a row. BackendError, with nothing moved, when memory is not torch's.
        """
        if self._out:
            raise ConflictError("the state is already on the host")
        storages = self._storages()
        if fixed := sum(not storage.resizable() for storage in storages):
            raise BackendError(
                f"{fixed} of {len(storages)} storages of the training state cannot be emptied: "
                "something else holds their memory",
                code="backend.deepspeed",
            )
        buffers = self._sized([storage.nbytes() for storage in storages])
        for storage, buffer in zip(storages, buffers, strict=True):
            buffer.copy_(_bytes_in(storage), non_blocking=True)
        _synchronize(storages)
        for storage, buffer in zip(storages, buffers, strict=True):
            storage.resize_(0)
            self._out.append((storage, buffer))
        return sum(buffer.numel() for buffer in buffers)

    def move_back(self) -> int:
        """Returns bytes; 0 when nothing was moved."""
        moved, self._out = self._out, []
        for storage, buffer in moved:
            storage.resize_(buffer.numel())
            _in_large_pages(storage)
            _bytes_in(storage).copy_(buffer, non_blocking=True)
        _synchronize([storage for storage, _ in moved])
        return sum(buffer.numel() for _, buffer in moved)

    def look(self, tensor: Tensor) -> Tensor:
        """The tensor's values where they lie now: itself, or a view of its copy on the host."""
        for storage, buffer in self._out:
            if storage._cdata == tensor.untyped_storage()._cdata:
                typed = buffer.view(tensor.dtype)
                return typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor.detach()

    def _storages(self) -> list[UntypedStorage]:
        found: dict[int, UntypedStorage] = {}
        for tensor in self._tensors():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                found.setdefault(storage.data_ptr(), storage)
        return list(found.values())

    def _sized(self, sizes: list[int]) -> list[Tensor]:
        """The buffers of the last move where they fit, so that no host memory is made anew."""
        pinned = torch.cuda.is_available()
        for index, size in enumerate(sizes):
            kept = self._buffers.get(index)
            if kept is None or kept.numel() != size:
                self._buffers[index] = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        for index in range(len(sizes), len(self._buffers)):
            del self._buffers[index]
        return [self._buffers[index] for index in range(len(sizes))]


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, read-only.

    Not by way of numpy: torch never empties a storage again that numpy has seen.
    """
    size = tensor.numel() * tensor.element_size()
    array = (ctypes.c_ubyte * size).from_address(tensor.data_ptr() if size else 0)
    array.tensor = tensor  # keeps the memory as long as the view
    return memoryview(array).cast("B").toreadonly()


def _bytes_in(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _in_large_pages(storage: UntypedStorage) -> None:
    """Fresh memory of the CPU's is zeroed and mapped page by page as it is written: with pages of
    2 MiB, where the kernel offers them on request, in half the time."""
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = storage.data_ptr() + storage.nbytes() - start
    if storage.device.type == "cpu" and size >= _LARGE_PAGE_BYTES:
        # A kernel without them says no, and nothing is lost.
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)


def _synchronize(storages: list[UntypedStorage]) -> None:
    if any(storage.device.type == "cuda" for storage in storages):
        torch.cuda.synchronize()
