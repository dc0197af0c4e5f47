"""Model shapes and host memory."""

from __future__ import annotations

import json

import pytest

from rmux.errors import SpecError
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.profile.footprint import (
    ModelShape,
    load_shape,
    rollout_resident_bytes,
    shape_of,
    train_resident_bytes,
    train_state_bytes,
)
from rmux.profile.hardware import hardware

QWEN_7B = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def test_a_config_gives_the_published_number_of_parameters():
    shape = shape_of(QWEN_7B)
    assert shape.params == pytest.approx(7.615e9, rel=0.002)
    assert shape.kv_bytes_per_token("bfloat16") == 57_344
    assert shape.active_params == shape.params


def test_experts_count_in_memory_and_only_the_used_ones_in_time():
    shape = shape_of(
        {**QWEN_7B, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
    )
    dense = shape_of({**QWEN_7B, "intermediate_size": 1024})
    per_expert = 3 * 3584 * 1024 * 28
    assert shape.params == dense.params + 7 * per_expert
    assert shape.active_params == dense.params + per_expert


def test_a_model_folder_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    assert load_shape(str(tmp_path)) == shape_of(QWEN_7B)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"hidden_size": 8}', "no usable num_hidden_layers"),
        ('{"hidden_size": "8"}', "no usable hidden_size"),
    ],
)
def test_a_model_folder_that_cannot_be_used_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        load_shape(str(tmp_path))


def size(params: float) -> ModelShape:
    return ModelShape(
        params=round(params), active_params=round(params), hidden=1, layers=1, kv_values=1
    )


# Published host memory per 8-GPU node, GB: parameters, replicas on the node, rollout, train.
PUBLISHED = {
    "3B": (3.09e9, 8, 113.4, 8, 156.2),
    "7B": (7.62e9, 8, 275.7, 4, 240.0),
    "14B": (14.77e9, 8, 445.4, 4, 456.1),
    "32B": (32.76e9, 4, 490.3, 1, 520.4),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_gpu_footprints_are_near_the_published_ones(name):
    params, engines, rollout_gb, ranks, train_gb = PUBLISHED[name]
    gpu = hardware("H800")
    spec = JobSpec(name="n", rollout=RolloutSpec(devices=engines, dtype="bfloat16"))
    rollout = rollout_resident_bytes(spec, size(params), gpu, devices_per_node=8) / 1e9
    train = train_state_bytes(size(params), gpu, ranks=ranks, data_parallel=ranks) / 1e9
    assert rollout_gb / 1.6 <= rollout <= rollout_gb * 1.6
    assert train_gb / 1.15 <= train <= train_gb * 1.15


def test_a_cpu_node_holds_cache_engine_and_both_weight_versions():
    shape, cpu = size(55e6), hardware("cpu")
    spec = JobSpec(name="n")
    held = rollout_resident_bytes(spec, shape, cpu, devices_per_node=1)
    weights = 4 * 55_000_000
    assert held >= 3 * weights + spec.rollout.kv_cache_bytes
    # By hand one in-process engine of a tiny model held 1740 MiB, 1 GiB of it cache.
    tiny = rollout_resident_bytes(spec, size(3e5), cpu, devices_per_node=1)
    assert 1740 * 2**20 <= tiny <= 1740 * 2**20 * 1.5


def test_zero_shards_the_moments_and_stage_three_all():
    shape, cpu = size(1e6), hardware("cpu")
    assert train_state_bytes(shape, cpu, ranks=1, data_parallel=1) == 16_000_000
    assert train_state_bytes(shape, cpu, ranks=1, data_parallel=4) == 10_000_000
    assert train_state_bytes(shape, cpu, ranks=1, data_parallel=4, stage=0) == 16_000_000
    assert train_state_bytes(shape, cpu, ranks=1, data_parallel=4, stage=3) == 4_000_000


def test_a_reference_model_is_one_more_copy_of_the_weights_on_every_rank():
    shape, cpu = size(1e9), hardware("cpu")
    plain = JobSpec(name="n", train=TrainSpec(devices=2))
    compared = JobSpec(name="n", train=TrainSpec(devices=2, kl=0.1))
    for ranks in (1, 2):
        bytes_ = [
            train_resident_bytes(spec, shape, cpu, devices_per_node=ranks)
            for spec in (compared, plain)
        ]
        assert bytes_[0] - bytes_[1] == ranks * shape.weight_bytes("float32")


def test_more_ranks_on_a_node_hold_more():
    shape, cpu = size(1e9), hardware("cpu")
    two = JobSpec(name="n", train=TrainSpec(devices=2))
    one_per_node = train_resident_bytes(two, shape, cpu, devices_per_node=1)
    both = train_resident_bytes(two, shape, cpu, devices_per_node=8)
    assert both > 1.8 * one_per_node
