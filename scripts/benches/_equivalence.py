"""One run of the equivalence bench: its jobs, its cluster, and what their store recorded."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rmux.events import EventType, PhaseEvent
from rmux.job import JobState, Phase
from rmux.run.driver.tokenizer import CharTokenizer
from rmux.store import events, jobs
from rmux.store.engine import Store

ALGORITHMS = ("grpo", "dapo", "ppo")
PROMPT_LETTERS = 6
_MAX_TOKENS = 256
_HELD_OUT_TOKENS = 64
_MOST_EVENTS = 1_000_000

_CLUSTER = """
[pools.roll]
kind = "rollout"
hardware = "cpu"
usd_per_device_h = 0.4
nodes = [
  {{ name = "roll-0", device = "cpu", cores = [{first}], host_memory = "64GiB" }},
  {{ name = "roll-1", device = "cpu", cores = [{second}], host_memory = "64GiB" }},
]
[pools.train]
kind = "train"
hardware = "cpu"
usd_per_device_h = 0.6
nodes = [ {{ name = "train-0", device = "cpu", cores = [{second}], host_memory = "64GiB" }} ]
"""

_SPEC = """
name = "{name}"
recipe = "{algorithm}"
iterations = {iterations}
seed = {seed}
slo = 100.0
restart_limit = 0
[model]
path = "model"
[task]
prompts = "task.py:prompts"
[rollout]
devices = 2
prompts = 12
samples_per_prompt = 8
max_prompt_tokens = {letters}
max_tokens = {max_tokens}
max_num_seqs = 64
kv_cache = "128MiB"
[train]
mini_batch = 24
micro_batch = 24
learning_rate = 3e-3
[reward]
function = "task.py:reward"
timeout = "5s"
"""

_TASK = '''
import random
import string

LETTERS = string.ascii_lowercase[:16]


def prompts(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.sample(LETTERS, {letters})) for _ in range(count)]


def reward(prompt: str, response: str) -> float:
    """Fraction of the characters that stand in the prompt; an empty response earns nothing."""
    return sum(character in prompt for character in response) / max(1, len(response))
'''


class Mode(StrEnum):
    ALONE = "alone"
    CO_EXECUTED = "co-executed"
    MIGRATED = "co-executed with migration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job of one run."""

    rewards: tuple[float, ...]
    """Mean of each iteration."""
    checksums: tuple[str, ...]
    """Of the weights that each iteration's sync sent."""
    held_out: float
    """Mean reward of greedy responses to prompts that no iteration saw."""
    moved: int
    """Responses that went on on another device."""
    exact: int
    """Those of them that are token for token what one device would have sampled."""


def run(
    folder: Path, mode: Mode, algorithms: Sequence[str], *, seed: int, iterations: int, trigger: str
) -> dict[str, Outcome]:
    """By algorithm. SystemExit when a command or a job fails."""
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(_TASK.format(letters=PROMPT_LETTERS))
    make_model(folder / "model", seed=seed)
    cores = sorted(os.sched_getaffinity(0))
    cluster = _CLUSTER.format(first=cores[0], second=cores[-1])
    (folder / "cluster.toml").write_text(cluster)
    _rmux(folder, "store", "init")
    _rmux(folder, "pool", "add", "-f", "cluster.toml")
    found = set()
    for algorithm in algorithms:
        text = _SPEC.format(
            name=algorithm,
            algorithm=algorithm,
            iterations=iterations,
            seed=seed,
            letters=PROMPT_LETTERS,
            max_tokens=_MAX_TOKENS,
        )
        (folder / f"{algorithm}.toml").write_text(text)
        found.add(_rmux(folder, "job", "submit", f"{algorithm}.toml")["group"])
    if len(found) != 1 or None in found:
        raise SystemExit(f"equivalence: the jobs are in groups {sorted(map(str, found))}")
    tail = trigger if mode is Mode.MIGRATED else "off"
    _rmux(folder, "group", "up", str(found.pop()), "--tail-trigger", tail)
    return _outcomes(folder)


def make_model(folder: Path, *, seed: int) -> None:
    """0.2 M parameters, random; the last symbol ends a response, so lengths differ widely."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = CharTokenizer()
    config = Qwen3Config(
        vocab_size=tokenizer.num_tokens,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.num_tokens - 1,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)


def _rmux(folder: Path, *args: str) -> dict[str, object]:
    environ = os.environ | {
        "RMUX_STORE": f"sqlite:///{folder}/rmux.db",
        "RMUX_RUN_DIR": str(folder / "runs"),
        "RMUX_NO_INPUT": "1",
    }
    program = str(Path(sys.executable).parent / "rmux")
    done = subprocess.run(
        [program, *args, "--json"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"equivalence: rmux {' '.join(args)}: {done.stderr[-3000:]}")
    answer: dict[str, object] = json.loads(done.stdout) if done.stdout.strip() else {}
    return answer


def _outcomes(folder: Path) -> dict[str, Outcome]:
    store = Store.open(f"sqlite:///{folder}/rmux.db")
    try:
        with store.read() as conn:
            ended = list(jobs.ls(conn))
            recorded = events.read(conn, limit=_MOST_EVENTS)
    finally:
        store.close()
    for job in ended:
        if job.state is not JobState.SUCCEEDED:
            raise SystemExit(f"equivalence: {job.spec.name} is {job.state}: {job.error}")
    return {
        job.spec.name: _outcome(
            [e for e in recorded if e.job_id == job.id], Path(job.run_dir), folder
        )
        for job in ended
    }


def _outcome(recorded: Sequence[PhaseEvent], run_dir: Path, folder: Path) -> Outcome:
    ends = [event for event in recorded if event.type is EventType.ITERATION_END]
    syncs = [
        event
        for event in recorded
        if (event.type, event.phase) == (EventType.PHASE_END, Phase.SYNC)
    ]
    moves = [event.data for event in recorded if event.type is EventType.TAIL_MOVED]
    return Outcome(
        rewards=tuple(float(event.data["reward"]) for event in ends),
        checksums=tuple(str(event.data["checksum"]) for event in syncs),
        held_out=held_out(folder / "model", run_dir),
        moved=sum(int(data["requests"]) for data in moves),
        exact=sum(int(data["exact"]) for data in moves),
    )


def held_out(model: Path, run_dir: Path, *, prompts: int = 64) -> float:
    """Mean reward of greedy responses of the newest checkpoint; prompts of a seed of their own."""
    import random
    import runpy

    import torch
    from transformers import AutoModelForCausalLM

    from rmux.run.driver.checkpoint import latest
    from rmux.run.workers.train_weights import read_weights

    task = runpy.run_path(str(model.parent / "task.py"))
    tokenizer = CharTokenizer()
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    found = latest(run_dir)
    if found is None:
        raise SystemExit(f"equivalence: no checkpoint in {run_dir}")
    policy.load_state_dict(read_weights(found.folder), strict=False)
    texts = task["prompts"](random.Random("held out"), prompts)
    tokens = torch.tensor([tokenizer.encode(text) for text in texts])
    end = tokenizer.num_tokens - 1
    with torch.no_grad():
        for _ in range(_HELD_OUT_TOKENS):
            logits = policy(input_ids=tokens).logits[:, -1]
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    answers = [
        list(itertools.takewhile(lambda t: t != end, row[PROMPT_LETTERS:]))
        for row in tokens.tolist()
    ]
    rewards = [
        task["reward"](text, tokenizer.decode(answer))
        for text, answer in zip(texts, answers, strict=True)
    ]
    return float(sum(rewards) / len(rewards))
