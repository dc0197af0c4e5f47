from __future__ import annotations

import ctypes
from typing import Any

import pytest

from rmux.errors import BackendError
from rmux.run.nvml import Nvml


class Driver:
    """Answers as libnvidia-ml does, from a list of (pid, bytes) per GPU."""

    def __init__(self, *gpus: list[tuple[int, int]]) -> None:
        self.gpus, self.status = gpus, 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return self.status

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        device._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, infos: Any) -> int:
        found = self.gpus[device.value - 1]
        room, count._obj.value = count._obj.value, len(found)
        if room < len(found):
            return 7
        for info, (pid, used) in zip(infos, found, strict=False):
            info.pid, info.used_bytes = pid, used
        return 0


def test_the_memory_of_processes_is_summed_over_the_gpus() -> None:
    nvml = Nvml(Driver([(10, 100), (11, 7)], [(10, 23)]))
    assert nvml.used_bytes([10]) == 123
    assert nvml.used_bytes([10, 11]) == 130
    assert nvml.used_bytes([12]) == 0
    assert (nvml.sees(11), nvml.sees(12)) == (True, False)


def test_more_processes_than_were_expected_are_asked_for_again() -> None:
    nvml = Nvml(Driver([(pid, 1) for pid in range(100)]))
    assert nvml.used_bytes(range(100)) == 100


def test_memory_the_driver_does_not_tell_is_not_taken_for_none() -> None:
    assert Nvml(Driver([(10, 2**64 - 1)])).used_bytes([10]) is None


def test_a_failing_driver_is_an_error() -> None:
    driver = Driver([])
    driver.status = 999
    with pytest.raises(BackendError, match="nvmlDeviceGetCount_v2 failed with status 999"):
        Nvml(driver).used_bytes([1])


def test_the_process_record_has_the_layout_of_the_driver() -> None:
    from rmux.run.nvml import _ProcessInfo

    assert ctypes.sizeof(_ProcessInfo) == 24
    assert _ProcessInfo.used_bytes.offset == 8
