"""Phase times from data sheets: an estimate for a first placement, until something is measured.

Decoding reads the weights and the KV cache once per step and is bound by memory; training is bound
by compute. Both are taken at every response's token limit. A GPU overlaps reading and computing, a
CPU core does one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmux.job import JobSpec
from rmux.profile.footprint import ModelShape
from rmux.profile.hardware import Hardware
from rmux.profile.tokens import Workload, environment_s, reward_s, workload_of

LOCAL_BYTES_PER_S = 2e9
"""Weights between processes of one host, when no link rate is declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds, bytes: the analytic counterpart of what a probe measures."""

    rollout_s: float
    train_s: float
    rollout_switch_s: float
    train_switch_s: float
    rollout_cold_s: float
    train_cold_s: float
    init_s: float
    sync_s: float
    sync_bytes: int
    checkpoint_s: float
    workload: Workload


def estimate(
    spec: JobSpec,
    shape: ModelShape,
    *,
    rollout: Hardware,
    train: Hardware,
    train_state_bytes: int,
    link_bps: float | None = None,
) -> Estimate:
    """Worst-case phase times of one iteration; `train_state_bytes` is of one rank."""
    work = workload_of(spec, kv_bytes_per_token=shape.kv_bytes_per_token(spec.rollout.dtype))
    weights = shape.weight_bytes(spec.rollout.dtype)
    link_bytes_per_s = LOCAL_BYTES_PER_S if link_bps is None else link_bps / 8
    checkpoint_bytes = train_state_bytes * spec.train.devices
    return Estimate(
        rollout_s=rollout_s(spec, shape, rollout, work) + reward_s(spec) + environment_s(spec),
        train_s=train_s(spec, shape, train, work),
        rollout_switch_s=rollout.switch_overhead_s + weights / rollout.host_bytes_per_s,
        train_switch_s=train.switch_overhead_s + _move_s(train, train_state_bytes),
        rollout_cold_s=rollout.rollout_cold_s + weights / rollout.disk_bytes_per_s,
        train_cold_s=train.train_cold_s + weights / train.disk_bytes_per_s,
        init_s=max(rollout.init_s, train.init_s) + weights / rollout.host_bytes_per_s,
        sync_s=weights / link_bytes_per_s,
        sync_bytes=weights,
        checkpoint_s=checkpoint_bytes / train.disk_bytes_per_s / spec.checkpoint.every,
        workload=work,
    )


def rollout_s(spec: JobSpec, shape: ModelShape, hardware: Hardware, work: Workload) -> float:
    """Prompts once a turn, then `response_tokens` decode steps per wave, at the mean context."""
    compute = hardware.flops * hardware.compute_fraction
    memory = hardware.memory_bytes_per_s * hardware.memory_fraction
    context = work.prompt_tokens + work.response_tokens / 2
    token_flops = 2.0 * shape.active_params + 4.0 * context * shape.hidden * shape.layers
    kv_bytes = context * shape.kv_bytes_per_token(spec.rollout.dtype)
    weights = _streamed_bytes(shape, spec, hardware)
    seconds = 0.0
    for batch in work.waves:
        compute_s = batch * token_flops / compute
        memory_s = (weights + batch * kv_bytes) / memory
        step_s = hardware.step_overhead_s + batch * hardware.sequence_overhead_s
        step_s += compute_s + memory_s if hardware.is_cpu else max(compute_s, memory_s)
        prefill_s = batch * work.prefill_tokens * 2.0 * shape.active_params / compute
        seconds += prefill_s + work.response_tokens * step_s
    return seconds


def train_s(spec: JobSpec, shape: ModelShape, hardware: Hardware, work: Workload) -> float:
    """6 x parameters x tokens (8 with recomputed activations), attention over the whole sequence,
    and a fixed part per pass.

    A reference model and a value head cost a forward pass more each, the value head's in passes of
    its own.
    """
    compute = hardware.flops * hardware.compute_fraction
    length = work.sequence_tokens
    forward_flops = 2.0 * shape.active_params + 4.0 * length * shape.hidden * shape.layers
    has_values = spec.recipe == "ppo"
    forwards = (4.0 if hardware.recomputes else 3.0) + (spec.train.kl > 0) + has_values
    token_flops = forwards * forward_flops
    passes_s = work.micro_batches * (1 + has_values) * hardware.microbatch_overhead_s
    return passes_s + work.train_tokens * token_flops / compute


def _streamed_bytes(shape: ModelShape, spec: JobSpec, hardware: Hardware) -> float:
    """Weights that a decode step reads from memory: none of a model that a CPU's cache holds."""
    weights = shape.weight_bytes(spec.rollout.dtype)
    return 0.0 if hardware.is_cpu and weights <= _CPU_CACHE_BYTES else float(weights)


_CPU_CACHE_BYTES = 16 * 2**20


def _move_s(hardware: Hardware, state_bytes: int) -> float:
    """Seconds to move a rank's state out and back; on a CPU it is in host memory already."""
    return 0.0 if hardware.is_cpu else 2.0 * state_bytes / hardware.host_bytes_per_s
