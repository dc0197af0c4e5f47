"""The recipes on the real engines: each learns, and none depends on how a batch is split."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmux.cluster import DeviceId, Node
from rmux.errors import WorkerError
from rmux.group import Placement
from rmux.ids import NodeId, PoolName
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.run.driver.engines import DriverConfig, Response, Sample
from rmux.run.driver.ray_session import RaySession
from rmux.run.driver.tokenizer import CharTokenizer
from rmux.run.driver.trainer import RayTrainer

pytestmark = [pytest.mark.engines, pytest.mark.slow]

TASKS = """
def prompts(rng, count):
    return ["".join(rng.sample("abcdefgh", 4)) for _ in range(count)]

def reward(prompt, response):
    return sum(c in "abcdefgh" for c in response) / len(response)
"""
SPEC = """\
name = "{recipe}"
recipe = "{recipe}"
iterations = 10
seed = 1
[model]
path = "."
[task]
prompts = "tasks.py:prompts"
[rollout]
prompts = 8
samples_per_prompt = 4
max_prompt_tokens = 8
max_tokens = 16
kv_cache = "32MiB"
[train]
mini_batch = 16
micro_batch = 16
learning_rate = 3e-3
{train}
[reward]
function = "tasks.py:reward"
"""
RUN = """
import importlib, json, os
from rmux.run.driver.recipes.parts import Parts
from rmux.spec import load_spec

step = Parts.step

def told(self, batch):
    report = step(self, batch)
    print(json.dumps(report.metrics), flush=True)
    return report

Parts.step = told
spec = load_spec(os.environ["RMUX_SPEC"])
importlib.import_module(f"rmux.run.driver.recipes.{spec.recipe}").main(spec)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, its tokenizer and a task."""
    path = tmp_path_factory.mktemp("recipes")
    script = (
        "import sys, torch\n"
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
        "torch.manual_seed(3)\n"
        "Qwen3ForCausalLM(Qwen3Config(vocab_size=64, hidden_size=64, intermediate_size=128,"
        " num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,"
        " max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,"
        " eos_token_id=None, pad_token_id=None)).save_pretrained(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True)
    CharTokenizer().save(path)
    (path / "tasks.py").write_text(TASKS)
    (path / "run.py").write_text(RUN)
    return path


@pytest.mark.parametrize(("recipe", "train"), [("dapo", ""), ("ppo", "kl = 0.01")])
def test_the_reward_rises(folder, recipe, train):
    spec = folder / f"{recipe}.toml"
    spec.write_text(SPEC.format(recipe=recipe, train=train))
    done = subprocess.run(
        [sys.executable, str(folder / "run.py")],
        env={**os.environ, "RMUX_SPEC": str(spec), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == 10
    rewards = [one["reward"] for one in told]
    assert rewards[0] < 0.25, "by chance an eighth"
    assert sum(rewards[-2:]) / 2 > 2 * rewards[0]
    if recipe == "dapo":
        assert all(one["groups"] == 8 for one in told), "what was dropped was replaced"
    else:
        assert 0 < told[0]["kl_reference"] < told[-1]["kl_reference"] / 3
        assert all(one["value_loss"] > 0 for one in told)


@pytest.fixture(scope="module")
def temp_dir():
    path = Path(f"/tmp/rx-{time.monotonic_ns() % 10**9}")
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def start(folder, temp_dir):
    """Makes a trainer with a value head and a reference, ready to step."""
    session = RaySession(job_id="j-split", temp_dir=temp_dir, run_tag=temp_dir.name)
    session.start()

    def make(*, devices, micro_batch, zero_stage=1):
        node = Node(
            id=NodeId("train-0"),
            pool=PoolName("train"),
            host="here",
            device_kind="cpu",
            num_devices=devices,
            cores=((1,),) * devices,
            host_memory_bytes=2**33,
        )
        spec = JobSpec(
            name="split",
            recipe="ppo",
            model_path=str(folder),
            seed=5,
            rollout=RolloutSpec(max_prompt_tokens=64, max_tokens=96),
            train=TrainSpec(
                devices=devices,
                mini_batch=8,
                micro_batch=micro_batch,
                zero_stage=zero_stage,
                gae_lambda=0.9,
                kl=0.1,
                mean="sequence",
            ),
        )
        config = DriverConfig(
            job_id="j-split",
            group_id="g",
            attempt=1,
            spec=spec,
            placement=Placement(
                rollout=(), train=tuple(DeviceId(node.id, index) for index in range(devices))
            ),
            nodes=(node,),
            run_dir=temp_dir,
            temp_dir=temp_dir,
            run_tag=temp_dir.name,
            channel_url="",
            heartbeat_s=1.0,
            gates=(),
        )
        trainer = RayTrainer(config, session)
        trainer.prepare()
        trainer.init()
        return trainer

    yield make
    session.close()


def end(trainer, devices):
    pids = [trainer.pids(DeviceId(NodeId("train-0"), index))[0] for index in range(devices)]
    trainer.close()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def samples_of(trainer, *, count, seed):
    """Responses of two turns: what stands between them was not sampled."""
    rng, made = random.Random(seed), []
    for index in range(count):
        prompt = tuple(rng.randrange(64) for _ in range(6))
        tokens = tuple(rng.randrange(64) for _ in range(rng.randrange(6, 20)))
        mask = tuple(not 2 <= at < 4 for at in range(len(tokens)))
        scored = trainer._on_first("score", [prompt + tokens], timeout_s=60)[0]
        logprobs = scored[len(prompt) - 1 :]
        response = Response(
            prompt_tokens=prompt,
            tokens=tokens,
            logprobs=tuple(value * here for value, here in zip(logprobs, mask, strict=True)),
            weight_version=trainer.weights_version,
            finish_reason="length",
            mask=mask,
        )
        made.append(Sample(response=response, reward=rng.random() + index % 3))
    return made


def saved(trainer, folder):
    """Weights and first moments of all parameters, the value head's last."""
    import torch
    from safetensors.torch import load_file

    folder.mkdir()
    trainer.save(folder)
    parts = [load_file(path) for path in sorted(folder.glob("part-*.safetensors"))]
    return {
        name: torch.cat([part[name] for part in parts])
        for name in ("weights", "exp_avg")
        if name in parts[0]
    }


def apart(one, other):
    return float((one - other).norm() / one.norm())


@pytest.fixture(scope="module")
def whole(start, folder):
    """What one rank in one pass makes of one optimizer step of 8 sequences."""
    trainer = start(devices=1, micro_batch=8)
    samples = samples_of(trainer, count=8, seed=0)
    report = trainer.step(samples)
    state = saved(trainer, folder / "whole")
    reference = trainer.gate_reference()
    end(trainer, 1)
    return samples, report, state, reference


def test_the_gradient_of_all_losses_is_that_of_one_rank_and_one_pass(start, whole, folder):
    """In passes of 3, with ZeRO 3 and, after a step that was refused, as if it had not been."""
    samples, report, expected, _ = whole
    trainer = start(devices=1, micro_batch=3, zero_stage=3)
    before = trainer._on_first("checksum", timeout_s=60)
    spoilt = [Sample(response=samples[0].response, reward=float("nan")), *samples[1:]]
    with pytest.raises(WorkerError, match="optimizer step 1 of 1 is not finite") as caught:
        trainer.step(spoilt)
    assert caught.value.code == "train.nan"
    assert trainer._on_first("checksum", timeout_s=60) == before
    again = trainer.step(samples)
    assert again.metrics == pytest.approx(report.metrics, rel=1e-4)
    found = saved(trainer, folder / "three")
    # After one step the first moments are a tenth of the gradient.
    assert apart(expected["exp_avg"], found["exp_avg"]) < 1e-5
    assert apart(expected["weights"], found["weights"]) < 1e-5
    assert expected["exp_avg"][-65:].norm() > 0, "the value head learns, too"
    end(trainer, 1)


def test_two_ranks_take_the_same_step_and_keep_the_value_head(start, whole, folder):
    samples, report, expected, _ = whole
    trainer = start(devices=2, micro_batch=2)
    names = [entry.name for entry in trainer._manifest]
    assert not [name for name in names if name.startswith("value_head")], "never sent"
    found = trainer.step(samples)
    assert found.metrics == pytest.approx(report.metrics, rel=1e-4)
    state = saved(trainer, folder / "two")
    assert apart(expected["exp_avg"], state["exp_avg"]) < 1e-5
    assert apart(expected["weights"], state["weights"]) < 1e-5
    trainer.restore(folder / "whole")
    restored = saved(trainer, folder / "restored")
    assert all((restored[name] == expected[name]).all() for name in expected)
    end(trainer, 2)


def test_the_weights_of_a_checkpoint_are_read_by_name(whole, folder):
    """In a process of its own, which imports what a user of the weights would."""
    *_, reference = whole
    script = (
        "import json, sys, torch\n"
        "from pathlib import Path\n"
        "from transformers import AutoModelForCausalLM\n"
        "from rmux.run.workers.train_weights import read_weights\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "found = read_weights(Path(sys.argv[2]))\n"
        "assert set(found) == {name for name, _ in model.named_parameters()}\n"
        "model.load_state_dict(found, strict=False)\n"
        "tokens = torch.tensor([json.loads(sys.argv[3])])\n"
        "logits = model(tokens).logits[:, :-1].log_softmax(-1)\n"
        "print(json.dumps(logits.gather(-1, tokens[:, 1:, None]).flatten().tolist()))\n"
    )
    sequence, expected = list(reference.sequences[0]), reference.logprobs[0]
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(folder / "whole"), json.dumps(sequence)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-5)
