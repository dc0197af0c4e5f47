"""Proof that parked processes are parked: they use next to no CPU for a few milliseconds, and on a
host with NVIDIA GPUs no device memory but that of their contexts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from rmux.run import nvml
from rmux.run.processes import run_time_ns
from rmux.run.runner.gate import Position

WINDOW_S = 0.005
MAX_RUN_NS = 1_000_000
"""CPU time that all threads of the processes together may use within one window."""

MAX_DEVICE_BYTES = 2**30
"""Device memory that each parked process may hold: a CUDA context with its libraries takes 0.3 to
0.8 GB and cannot be given back, weights or a KV cache that stayed take more."""


def device_bytes(pids: Collection[int]) -> int | None:
    """None on a host without an NVIDIA driver, or where it does not tell."""
    driver = nvml.probe()
    return None if driver is None else driver.used_bytes(pids)


@dataclass(frozen=True, slots=True)
class _Sample:
    order: tuple[int, int]
    at_s: float
    run_ns: int


class Proofs:
    """Running proofs of one gate, by device. A process that is gone is idle."""

    def __init__(
        self,
        *,
        now_s: Callable[[], float] = time.monotonic,
        run_ns: Callable[[Iterable[int]], int] = run_time_ns,
        device_bytes: Callable[[Collection[int]], int | None] = device_bytes,
    ) -> None:
        self._now_s, self._run_ns, self._device_bytes = now_s, run_ns, device_bytes
        self._samples: dict[str, _Sample] = {}

    def check(self, parked: Mapping[str, Position]) -> dict[str, tuple[int, int]]:
        """Look again; returns the devices proven now, with the order of their grant."""
        self._samples = {d: sample for d, sample in self._samples.items() if d in parked}
        proven = {}
        for device, position in parked.items():
            assert position.grant is not None
            order = position.grant.order
            if self._is_idle(device, position, order):
                proven[device] = order
                self._samples.pop(device, None)
        return proven

    def _is_idle(self, device: str, position: Position, order: tuple[int, int]) -> bool:
        if not position.pids:
            return True
        before = self._samples.get(device)
        now_s = self._now_s()
        if before is not None and before.order == order:
            if now_s - before.at_s < WINDOW_S:
                return False
            run_ns = self._run_ns(position.pids)
            # A late look has seen a longer window, which is to be as idle.
            if run_ns - before.run_ns < MAX_RUN_NS and self._is_off_device(position.pids):
                return True
        else:
            run_ns = self._run_ns(position.pids)
        self._samples[device] = _Sample(order, now_s, run_ns)
        return False

    def _is_off_device(self, pids: Collection[int]) -> bool:
        used = self._device_bytes(pids)
        return used is None or used <= MAX_DEVICE_BYTES * len(pids)

    def wait_s(self) -> float | None:
        """Seconds to the next look that can decide anything; None when nothing is to be proven."""
        if not self._samples:
            return None
        first_s = min(sample.at_s for sample in self._samples.values())
        return max(0.0005, first_s + WINDOW_S - self._now_s())
