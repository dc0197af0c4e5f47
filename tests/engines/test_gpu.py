"""What a park gives back on a GPU: the engine's weights, the trainer's state, by NVML's count."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rmux.run import nvml

DRIVER = nvml.probe()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        DRIVER is None, reason="needs an NVIDIA GPU: no driver answers on this host"
    ),
]

MIB = 2**20

_MODEL = """
import json, os, sys, torch
from rmux.run import nvml
from transformers import Qwen3Config, Qwen3ForCausalLM

def model():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=4096, hidden_size=1024, intermediate_size=3072,
        num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None))

def used():
    torch.cuda.synchronize()
    return nvml.probe().used_bytes([os.getpid()])
"""

_TRAIN = """
import deepspeed
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State
from deepspeed.runtime.zero.offload_states import get_state_devices
from rmux.run.workers.train_state import RankState

stage, how = int(sys.argv[1]), sys.argv[2]
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=sys.argv[3])
module = model()
# `offload_states` of ZeRO 3 insists on this optimizer.
engine, *_ = deepspeed.initialize(model=module, config={
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": stage, "reduce_bucket_size": 10_000_000},
}, optimizer=FusedAdam(module.parameters(), lr=1e-4))
tokens = torch.arange(64, device="cuda")[None]
engine.backward(engine(input_ids=tokens, labels=tokens).loss)
engine.step()
state = RankState(engine, rank=0, ranks=1)

def values():
    return state.checksum(), float(engine(input_ids=tokens, labels=tokens).loss)

def devices(kind):
    if kind is State.lp_params and stage < 3:
        return {str(p.device.type) for p in engine.module.parameters()}
    if stage < 3:
        kept = {State.hp_params: engine.optimizer.single_partition_of_fp32_groups,
                State.optim_states: [v for s in engine.optimizer.optimizer.state.values()
                                     for k, v in s.items() if k.startswith("exp_avg")]}[kind]
        return {tensor.device.type for tensor in kept}
    return {device.type for device in get_state_devices(engine, kind)}

kinds = (State.lp_params, State.hp_params, State.optim_states)
before, expected = used(), values()
if how == "offload":
    engine.offload_states(include=[*kinds, State.contiguous_grad_buffer])
    where = {kind.value: sorted(devices(kind)) for kind in kinds}
else:
    size = state.copies.move_out()
    where = {"bytes": size}
torch.cuda.empty_cache()
parked = used()
engine.reload_states() if how == "offload" else state.copies.move_back()
back = {kind.value: sorted(devices(kind)) for kind in kinds}
print(json.dumps({"before": before, "parked": parked, "where": where, "back": back,
                  "same": values() == expected,
                  "weights": 4 * sum(n for n in state._numels)}))
"""

_ROLLOUT = """
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")
from vllm import EngineArgs, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine

folder = sys.argv[1]
built = model()
built.save_pretrained(folder)
tensors = dict(built.state_dict())
engine = LLMEngine.from_engine_args(EngineArgs(model=folder, dtype="float32", max_model_len=256,
    kv_cache_memory_bytes=256 * 2**20, enforce_eager=True, skip_tokenizer_init=True,
    enable_sleep_mode=True))

def scored():
    engine.add_request("one", {"prompt_token_ids": list(range(64))},
        SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False))
    while engine.has_unfinished_requests():
        for output in engine.step():
            rows = output.prompt_logprobs
    assert engine.reset_prefix_cache()
    return [rows[at][at].logprob for at in range(1, 64)]

def host():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup")
               if line.startswith("Pss:")) * 1024

expected, before, host_before = scored(), used(), host()
engine.sleep(level=2)
parked, host_parked = used(), host()
engine.wake_up(tags=["weights"])
engine.model_executor.driver_worker.worker.model_runner.reload_weights(
    weights_iterator=iter(tensors.items()))
assert engine.wake_up(tags=["kv_cache"])
print(json.dumps({"before": before, "parked": parked, "same": scored() == expected,
                  "host_growth": host_parked - host_before,
                  "weights": sum(p.numel() * 4 for p in built.parameters())}))
"""


def ran(script: str, *args: str) -> dict:
    environ = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-c", _MODEL + script, *args],
        capture_output=True,
        text=True,
        env=environ,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("how", ["offload", "own copies"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parked_training_state_leaves_the_device_and_comes_back_bit_equal(stage, how):
    found = ran(_TRAIN, str(stage), how, str(29600 + stage + 10 * (how == "offload")))
    assert found["same"]
    assert all(devices == ["cuda"] for devices in found["back"].values())
    if how == "offload":
        assert all(devices == ["cpu"] for devices in found["where"].values())
    else:
        assert found["where"]["bytes"] >= 3 * found["weights"]
    # Weights and both moments at least; the master copy of ZeRO 1 and 2 comes on top.
    assert found["before"] - found["parked"] > 2.9 * found["weights"]
    assert found["parked"] < 1024 * MIB, "a context, no more"


def test_a_sleeping_engine_gives_its_weights_back_and_keeps_no_copy_of_them(tmp_path):
    found = ran(_ROLLOUT, str(tmp_path))
    assert found["same"]
    assert found["before"] - found["parked"] > found["weights"] + 200 * MIB
    assert found["host_growth"] < found["weights"] / 4
    assert found["parked"] < 1024 * MIB
