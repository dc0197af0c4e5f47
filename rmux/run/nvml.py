"""Device memory by process, from the NVIDIA driver's own library; no package is needed for it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from typing import Any

from rmux.errors import BackendError

_SUCCESS = 0
_INSUFFICIENT_SIZE = 7
_NOT_AVAILABLE = 2**64 - 1


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, as `nvmlDeviceGetComputeRunningProcesses_v3` fills it in."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """`library` is libnvidia-ml, initialised. BackendError when a call of it fails."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def used_bytes(self, pids: Collection[int]) -> int | None:
        """Device memory of the processes over all GPUs; None when the driver does not tell it.

        A process without a context on a GPU uses none there. One that has been parked keeps its
        context, so compare with what it held before, or with a stated bound. In a container
        without the host's process ids nothing is found: see `sees`.
        """
        found = [used for pid, used in self._processes() if pid in pids]
        return None if _NOT_AVAILABLE in found else sum(found)

    def sees(self, pid: int) -> bool:
        """Whether the process has a context that the driver names by this process id."""
        return any(found == pid for found, _ in self._processes())

    def _processes(self) -> list[tuple[int, int]]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [pair for index in range(count.value) for pair in self._processes_of(index)]

    def _processes_of(self, index: int) -> list[tuple[int, int]]:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        name, size = "nvmlDeviceGetComputeRunningProcesses_v3", 32
        while True:
            count, infos = ctypes.c_uint(size), (_ProcessInfo * size)()
            status = getattr(self._library, name)(device, ctypes.byref(count), infos)
            if status == _SUCCESS:
                return [(info.pid, info.used_bytes) for info in infos[: count.value]]
            if status != _INSUFFICIENT_SIZE:
                raise BackendError(f"{name} failed with status {status}", code="backend.nvml")
            size = count.value + 16  # others may start meanwhile

    def _call(self, name: str, *args: Any) -> None:
        if status := getattr(self._library, name)(*args):
            raise BackendError(f"{name} failed with status {status}", code="backend.nvml")


@functools.cache
def probe() -> Nvml | None:
    """None on a host without an NVIDIA driver that can be asked."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        names = ("nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
        ready = all(hasattr(library, name) for name in names) and library.nvmlInit_v2() == _SUCCESS
    except OSError:
        return None
    return Nvml(library) if ready else None
