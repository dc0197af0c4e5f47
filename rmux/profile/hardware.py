"""Catalogue of devices: data-sheet numbers, and the overheads that a roofline needs beside them."""

from __future__ import annotations

from dataclasses import dataclass

from rmux.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device. FLOP/s are dense bfloat16 on a GPU and float32 on a CPU core.

    The CPU's numbers are what vLLM and DeepSpeed reached on one core of a two-core EPYC, so its
    fractions are 1; a GPU's are its data sheet, and the fractions what such engines usually reach.
    """

    name: str
    flops: float
    memory_bytes_per_s: float
    memory_bytes: int
    """Of the device; 0 where it uses the host's."""
    compute_fraction: float = 0.4
    memory_fraction: float = 0.6
    recomputes: bool = True
    """Training runs the forward pass twice to save activations: 8 instead of 6 FLOP."""
    step_overhead_s: float = 0.004
    """Of one decode step, whatever the batch."""
    sequence_overhead_s: float = 2e-6
    """Of one sequence in a decode step: sampling, bookkeeping."""
    microbatch_overhead_s: float = 0.05
    """Of one forward and backward pass."""
    switch_overhead_s: float = 0.3
    """Of one warm park and wake, beside the bytes moved."""
    host_bytes_per_s: float = 25e9
    """Between host memory and device."""
    disk_bytes_per_s: float = 2e9
    rollout_cold_s: float = 25.0
    """From nothing to the first token, beside reading the weights."""
    train_cold_s: float = 25.0
    init_s: float = 15.0
    """The part of a cold start that needs the device."""
    rollout_process_bytes: int = 4 * 10**9
    """Host memory of one engine process without weights."""
    train_process_bytes: int = 4 * 10**9

    @property
    def is_cpu(self) -> bool:
        return self.memory_bytes == 0


def _gpu(name: str, tflops: float, tb_per_s: float, memory_gb: int) -> Hardware:
    return Hardware(
        name=name,
        flops=tflops * 1e12,
        memory_bytes_per_s=tb_per_s * 1e12,
        memory_bytes=memory_gb * 10**9,
    )


_CATALOGUE = {
    entry.name: entry
    for entry in (
        Hardware(
            name="cpu",
            flops=80e9,
            memory_bytes_per_s=10e9,
            memory_bytes=0,
            compute_fraction=1.0,
            memory_fraction=1.0,
            recomputes=False,
            step_overhead_s=0.9e-3,
            sequence_overhead_s=20e-6,
            microbatch_overhead_s=0.1,
            switch_overhead_s=0.02,
            host_bytes_per_s=1.5e9,
            disk_bytes_per_s=1e9,
            rollout_cold_s=7.8,
            train_cold_s=4.4,
            init_s=2.7,
            rollout_process_bytes=740 * 2**20,
            train_process_bytes=1045 * 2**20,
        ),
        _gpu("H20", 148, 4.0, 96),
        _gpu("H800", 989.5, 3.35, 80),
        _gpu("H100", 989.5, 3.35, 80),
        _gpu("H200", 989.5, 4.8, 141),
        _gpu("A100", 312, 2.039, 80),
        _gpu("A800", 312, 2.039, 80),
        _gpu("L40S", 362, 0.864, 48),
        _gpu("B200", 2250, 8.0, 180),
    )
}


def hardware(name: str) -> Hardware:
    """UserError when the catalogue has no such entry."""
    if name not in _CATALOGUE:
        raise UserError(
            f"no hardware {name!r} in the catalogue",
            hint=f"one of {', '.join(_CATALOGUE)}; or measure: rmux profile SPEC --measure",
            code="profile.hardware",
        )
    return _CATALOGUE[name]
