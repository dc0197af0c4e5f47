"""The KV cache of a parked engine on the CPU: host memory that holds nothing, given back meanwhile.

A parked engine has no requests, and every wake clears its prefix cache, so nothing in there is ever
read again: its storages are emptied, not replaced, and zeroed when they return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage


class KvCache:
    """Used on the thread of its engine only."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._emptied: list[tuple[UntypedStorage, int]] = []

    def drop(self) -> int:
        """Give the memory back; returns bytes, 0 when it is gone already or on another device."""
        if self._emptied:
            return 0
        found = {}
        for tensor in self._tensors:
            storage = tensor.untyped_storage()
            if storage.device.type == "cpu" and storage.nbytes():
                found[storage.data_ptr()] = storage
        self._emptied = [(storage, storage.nbytes()) for storage in found.values()]
        for storage, _ in self._emptied:
            storage.resize_(0)
        return sum(size for _, size in self._emptied)

    def regain(self) -> None:
        for storage, size in self._emptied:
            storage.resize_(size)
            storage.fill_(0)
        self._emptied = []
