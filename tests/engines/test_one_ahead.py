"""A job that is one step off-policy on the real engines: the next rollout beside the train."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from rmux.events import EventType, PhaseEvent
from rmux.job import Phase
from rmux.run.driver.tokenizer import CharTokenizer
from rmux.run.probe import GroupProbe
from rmux.run.trace_check import check
from rmux.spec import load_cluster, load_spec

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]

CLUSTER = Path(__file__).parents[2] / "examples" / "cpu" / "cluster.toml"
ITERATIONS = 8
TASKS = """
def prompts(rng, count):
    return ["".join(rng.sample("abcdefgh", 4)) for _ in range(count)]

def reward(prompt, response):
    return sum(c in "abcdefgh" for c in response) / len(response) if response else 0.0
"""
SPEC = """\
name = "ahead"
recipe = "grpo"
max_staleness = 1
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
[reward]
function = "tasks.py:reward"
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[PhaseEvent, ...]:
    folder = tmp_path_factory.mktemp("ahead")
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    CharTokenizer().save(folder)
    (folder / "tasks.py").write_text(TASKS)
    (folder / "job.toml").write_text(SPEC)
    host = socket.gethostname()
    os.environ["HF_HUB_OFFLINE"] = "1"
    probe = GroupProbe(host=host)
    spec = replace(load_spec(folder / "job.toml"), iterations=ITERATIONS)
    probe.run(spec, cluster=load_cluster(CLUSTER, host=host), iterations=ITERATIONS - 1)
    return tuple(probe.recorded)


def ends(recorded: tuple[PhaseEvent, ...]) -> list[PhaseEvent]:
    return [event for event in recorded if event.type is EventType.ITERATION_END]


def test_it_learns_from_samples_of_the_version_before(recorded: tuple[PhaseEvent, ...]) -> None:
    found = ends(recorded)
    assert [event.data["weight_version"] for event in found] == [*range(1, ITERATIONS + 1)]
    staleness = [event.data["staleness"] for event in found]
    assert staleness[0] == 0
    assert set(staleness) == {0, 1}
    assert statistics.fmean(staleness) > 0.5
    rewards = [event.data["reward"] for event in found]
    assert statistics.fmean(rewards[-2:]) > statistics.fmean(rewards[:2]) + 0.1


def test_its_rollouts_run_beside_its_trains(recorded: tuple[PhaseEvent, ...]) -> None:
    assert check(recorded) == []
    started = {
        (event.phase, event.iteration): event.at_s
        for event in recorded
        if event.type is EventType.PHASE_START
    }
    ended = {
        (event.phase, event.iteration): event.at_s
        for event in recorded
        if event.type is EventType.PHASE_END
    }
    beside = [started[Phase.ROLLOUT, n + 1] < ended[Phase.TRAIN, n] for n in range(ITERATIONS - 1)]
    assert sum(beside) > len(beside) // 2
