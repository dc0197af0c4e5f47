"""The size of a model, and the host memory that its parked engines hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmux.errors import SpecError
from rmux.job import JobSpec
from rmux.profile.hardware import Hardware

WEIGHT_VERSIONS = 2
"""Kept in a node's host weight cache: the one in use and the one that a sync writes."""
NODE_BYTES = 600 * 2**20
"""Of a job's Ray daemons, driver and caches on each of its nodes."""

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer. Parameter counts include the embeddings once if tied."""

    params: int
    active_params: int
    """Used for one token: fewer than `params` with experts."""
    hidden: int
    layers: int
    kv_values: int
    """Key and value numbers kept per token, all layers."""

    def weight_bytes(self, dtype: str) -> int:
        return self.params * _DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        return self.kv_values * _DTYPE_BYTES[dtype]


def load_shape(model_path: str) -> ModelShape:
    """Read a model folder's config.json. SpecError when it is missing or lacks a size."""
    path = Path(model_path) / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise SpecError(
            f"model.path: cannot read {path}: {error.strerror or error}",
            hint="the folder needs config.json, weights and a tokenizer",
        ) from error
    except ValueError as error:
        raise SpecError(f"model.path: {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SpecError(f"model.path: {path} is not a JSON object")
    return shape_of(config.get("text_config", config), source=str(path))


def shape_of(config: Mapping[str, Any], *, source: str = "config.json") -> ModelShape:
    """The shape that a Hugging Face config describes. SpecError names a size that is missing."""

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(f"model.path: {source} has no usable {key} ({value!r})")
        return value

    hidden, layers, vocab = size("hidden_size"), size("num_hidden_layers"), size("vocab_size")
    heads = size("num_attention_heads")
    kv_heads = size("num_key_value_heads", heads)
    head = size("head_dim", max(1, hidden // heads))
    attention = 2 * hidden * heads * head + 2 * hidden * kv_heads * head
    experts = size("num_experts", size("num_local_experts", 1))
    used = min(experts, size("num_experts_per_tok", 1))
    dense = size("intermediate_size", 4 * hidden)
    feed_forward = 3 * hidden * (size("moe_intermediate_size", dense) if experts > 1 else dense)
    embeddings = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    rest = 2 * hidden
    return ModelShape(
        params=layers * (attention + experts * feed_forward + rest) + embeddings,
        active_params=layers * (attention + used * feed_forward + rest) + embeddings,
        hidden=heads * head,
        layers=layers,
        kv_values=2 * layers * kv_heads * head,
    )


def rollout_resident_bytes(
    spec: JobSpec, shape: ModelShape, hardware: Hardware, *, devices_per_node: int
) -> int:
    """Host memory of one rollout node while the job is parked.

    Each engine keeps one copy of the weights in host memory (its device copy on a CPU, its asleep
    copy on a GPU), and on a CPU its KV cache; the node's cache holds two versions more.
    """
    engines = min(spec.rollout.devices, devices_per_node)
    weights = shape.weight_bytes(spec.rollout.dtype)
    kv_cache = spec.rollout.kv_cache_bytes if hardware.is_cpu else 0
    each = weights + kv_cache + hardware.rollout_process_bytes
    return WEIGHT_VERSIONS * weights + engines * each + NODE_BYTES


def train_resident_bytes(
    spec: JobSpec, shape: ModelShape, hardware: Hardware, *, devices_per_node: int
) -> int:
    """Host memory of one train node while the job is parked: `train_state_bytes` and processes.

    With `train.kl` each rank keeps a copy of the weights more: the reference, which has neither
    gradients nor moments and is not sharded.
    """
    ranks = min(spec.train.devices, devices_per_node)
    state = train_state_bytes(
        shape, hardware, ranks=ranks, data_parallel=spec.train.devices, stage=spec.train.zero_stage
    )
    reference = shape.weight_bytes("float32" if hardware.is_cpu else "bfloat16")
    copies = ranks if spec.train.kl else 0
    return state + copies * reference + ranks * hardware.train_process_bytes + NODE_BYTES


def train_state_bytes(
    shape: ModelShape,
    hardware: Hardware,
    *,
    ranks: int,
    data_parallel: int,
    stage: int = 1,
) -> int:
    """Weights, gradients and optimizer state of `ranks` data-parallel ranks, bytes.

    Per parameter: float32 weights and gradients on a CPU (8), bfloat16 ones and buffers on a GPU
    (4.8, from what is published of 3B to 32B models), on every rank below ZeRO-3; and two float32
    moments (8), with float32 master weights on a GPU (12), sharded from ZeRO-1 on.
    """
    replicated, sharded = (8.0, 8.0) if hardware.is_cpu else (4.8, 12.0)
    share = 1.0 / data_parallel if stage >= 1 else 1.0
    per_rank = replicated * (share if stage >= 3 else 1.0) + sharded * share
    return round(shape.params * ranks * per_rank)
