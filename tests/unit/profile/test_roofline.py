"""The analytic estimate against what real engines took, and how it moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmux.errors import UserError
from rmux.job import EnvironmentSpec, JobSpec, RewardSpec, RolloutSpec, TrainSpec
from rmux.profile import hardware
from rmux.profile.footprint import ModelShape, shape_of
from rmux.profile.roofline import Estimate, estimate
from rmux.profile.tokens import environment_s, held_reward_s, workload_of

TINY = shape_of(
    {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    }
)
SMALL = ModelShape(
    params=3_200_000, active_params=3_200_000, hidden=256, layers=4, kv_values=2 * 4 * 4 * 32
)


def spec(prompts: int, max_tokens: int, *, seqs: int = 128, samples: int = 8) -> JobSpec:
    return JobSpec(
        name="n",
        rollout=RolloutSpec(
            prompts=prompts,
            samples_per_prompt=samples,
            max_prompt_tokens=8,
            max_tokens=max_tokens,
            max_num_seqs=seqs,
        ),
    )


def on_cpu(one: JobSpec, shape: ModelShape = TINY) -> Estimate:
    cpu = hardware.hardware("cpu")
    return estimate(one, shape, rollout=cpu, train=cpu, train_state_bytes=16 * shape.params)


# (spec, model, rollout from..to, train from..to): vLLM and DeepSpeed on one core each.
MEASURED = {
    "16 x 8, 384 tokens": (spec(16, 384), TINY, (2.6, 3.0), (2.3, 2.45)),
    "32 x 8, 384 tokens": (spec(32, 384), TINY, (5.2, 5.7), (4.6, 5.0)),
    "max_num_seqs 16": (spec(16, 384, seqs=16), TINY, (5.0, 5.3), (2.3, 2.5)),
    "max_num_seqs 32": (spec(16, 384, seqs=32), TINY, (3.6, 3.6), (2.4, 2.4)),
    "3.2 M parameters": (spec(8, 256), SMALL, (2.3, 2.45), (4.7, 5.5)),
    "960 tokens": (spec(4, 960), TINY, (2.75, 2.75), (2.05, 2.05)),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_cpu_estimate_is_within_half_of_what_real_engines_took(name):
    one, shape, rollout_s, train_s = MEASURED[name]
    found = on_cpu(one, shape)
    assert rollout_s[0] / 1.5 <= found.rollout_s <= rollout_s[1] * 1.5
    assert train_s[0] / 1.5 <= found.train_s <= train_s[1] * 1.5


def test_fewer_sequences_at_once_mean_more_waves_and_a_longer_rollout_but_the_same_train():
    wide, narrow = on_cpu(spec(16, 384)), on_cpu(spec(16, 384, seqs=16))
    assert (len(wide.workload.waves), len(narrow.workload.waves)) == (1, 8)
    assert narrow.workload.decode_steps == 8 * 384
    assert narrow.rollout_s > 1.5 * wide.rollout_s
    assert narrow.train_s == wide.train_s


def test_the_last_wave_holds_the_rest():
    work = workload_of(spec(5, 10, samples=4, seqs=8), kv_bytes_per_token=1)
    assert work.waves == (8, 8, 4)


def test_a_small_kv_cache_holds_fewer_sequences_at_once():
    one = spec(2, 92, samples=4)
    one = replace(one, rollout=replace(one.rollout, kv_cache_bytes=100 * 10 * 3))
    assert workload_of(one, kv_bytes_per_token=10).waves == (3, 3, 2)


def test_more_devices_share_the_samples():
    one = spec(16, 384, seqs=16)
    halved = replace(
        one, rollout=replace(one.rollout, devices=2), train=TrainSpec(devices=2, micro_batch=32)
    )
    assert on_cpu(halved).rollout_s == pytest.approx(on_cpu(one).rollout_s / 2)
    assert on_cpu(halved).train_s == pytest.approx(on_cpu(one).train_s / 2)


def test_reward_time_is_part_of_the_worst_rollout():
    one = replace(spec(2, 10), reward=RewardSpec(seconds_per_sample=0.5))
    assert on_cpu(one).rollout_s == pytest.approx(on_cpu(spec(2, 10)).rollout_s + 16 * 0.5)


def test_every_refill_and_the_rewards_it_waits_for_are_part_of_the_worst_rollout():
    one = spec(2, 10)
    refilled = replace(one, rollout=replace(one.rollout, refills=2), reward=RewardSpec(timeout_s=3))
    waves = workload_of(one, kv_bytes_per_token=1).waves
    assert workload_of(refilled, kv_bytes_per_token=1).waves == waves * 3
    assert on_cpu(refilled).rollout_s == pytest.approx(3 * on_cpu(one).rollout_s + 2 * 3)
    assert on_cpu(refilled).train_s == on_cpu(one).train_s
    stated = replace(refilled, reward=RewardSpec(seconds_per_sample=0.5))
    assert held_reward_s(stated) == 16 * 0.5
    assert on_cpu(stated).rollout_s == pytest.approx(3 * (on_cpu(one).rollout_s + 8))
    played = replace(stated, environment=EnvironmentSpec(function="a.py:A"))
    assert held_reward_s(played) == 0


def test_a_value_head_and_a_reference_model_each_cost_a_forward_pass():
    one = spec(2, 10)
    fixed_s = workload_of(one, kv_bytes_per_token=1).micro_batches * 0.1
    work_s = on_cpu(one).train_s - fixed_s
    compared = replace(one, train=replace(one.train, kl=0.1))
    assert on_cpu(compared).train_s == pytest.approx(fixed_s + work_s * 4 / 3)
    valued = replace(one, recipe="ppo")
    assert on_cpu(valued).train_s == pytest.approx(2 * fixed_s + work_s * 4 / 3)


def test_turns_and_their_environments_are_part_of_the_worst_rollout():
    plain = spec(2, 10)
    lake = EnvironmentSpec(function="a.py:A", max_turns=3, processes=4, seconds_per_step=0.5)
    one = replace(plain, environment=lake)
    # 16 episodes in 4 processes, a reset and 3 steps each; 2 more turns read 8 + 10/2 tokens again.
    assert environment_s(one) == 4 * 4 * 0.5
    assert workload_of(one, kv_bytes_per_token=1).prefill_tokens == 8 + 2 * 13
    assert workload_of(plain, kv_bytes_per_token=1).prefill_tokens == 8
    assert on_cpu(one).rollout_s > on_cpu(plain).rollout_s + 4 * 4 * 0.5
    late = replace(one, environment=replace(lake, seconds_per_step=99.0, timeout_s=0.25))
    assert environment_s(late) == 4 * 4 * 0.25


def test_sync_takes_what_one_copy_takes_over_the_link():
    cpu = hardware.hardware("cpu")
    found = estimate(spec(2, 10), SMALL, rollout=cpu, train=cpu, train_state_bytes=0, link_bps=1e6)
    assert found.sync_bytes == 4 * SMALL.params
    assert found.sync_s == pytest.approx(8 * 4 * SMALL.params / 1e6)


def test_bandwidth_speeds_up_decoding_and_compute_speeds_up_training():
    seven = ModelShape(
        params=7_600_000_000,
        active_params=7_600_000_000,
        hidden=3584,
        layers=28,
        kv_values=2 * 28 * 4 * 128,
    )
    one = replace(
        spec(32, 8192),
        rollout=RolloutSpec(
            devices=8,
            prompts=32,
            samples_per_prompt=8,
            max_tokens=8192,
            dtype="bfloat16",
            kv_cache_bytes=60 * 10**9,
        ),
        train=TrainSpec(devices=8, micro_batch=4, mini_batch=256),
    )
    h20, h800 = hardware.hardware("H20"), hardware.hardware("H800")
    paper = estimate(one, seven, rollout=h20, train=h800, train_state_bytes=0)
    swapped = estimate(one, seven, rollout=h800, train=h20, train_state_bytes=0)
    assert paper.rollout_s < swapped.rollout_s
    assert paper.train_s < swapped.train_s / 3
    # Published for a 7B model, 8K tokens, 8 + 8 devices: 134 s and 113 s.
    assert 134 / 3 <= paper.rollout_s <= 134 * 3
    assert 113 / 3 <= paper.train_s <= 113 * 3


def test_unknown_hardware_names_the_catalogue():
    with pytest.raises(UserError, match="no hardware 'H900'") as caught:
        hardware.hardware("H900")
    assert "H800" in caught.value.hint
