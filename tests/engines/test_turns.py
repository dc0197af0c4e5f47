"""Rollouts of several turns on the real engines: sampled turn by turn, trained on as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmux.cluster import PoolKind
from rmux.errors import WorkerError
from rmux.run.driver import turns
from rmux.run.driver.engines import Sample, Sampling
from rmux.run.driver.episode import End, Episode, Limits, Played
from rmux.run.driver.ray_engines import RayEngines
from rmux.run.driver.tokenizer import CharTokenizer
from rmux.run.sandbox.environments import EnvironmentPool

SOURCE = """
class Echo:
    def reset(self, *, seed):
        self.turn = 0
        return f"say {seed}", {}

    def step(self, text):
        self.turn += 1
        return " you said " + text[::-1], float(len(set(text))), self.turn == 2, False, {}
"""
TOKENIZER = CharTokenizer()


@pytest.fixture(scope="module")
def engines(make_config: Callable[..., Any]) -> Iterator[RayEngines]:
    one = RayEngines(make_config())
    try:
        one.prepare()
        one.init(PoolKind.ROLLOUT)
        one.init(PoolKind.TRAIN)
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def played(engines: RayEngines, tmp_path_factory: pytest.TempPathFactory) -> list[Played]:
    path = tmp_path_factory.mktemp("echo") / "echo.py"
    Path(path).write_text(SOURCE)
    engines.wake(PoolKind.ROLLOUT)
    try:
        with EnvironmentPool(f"{path}:Echo", timeout_s=10.0) as environments:
            return turns.play(
                engines.fleet(),
                [Episode(reset_seed=at // 4, seed=at) for at in range(16)],
                environments=environments,
                tokenizer=TOKENIZER,
                sampling=Sampling(),
                limits=Limits(max_turns=5, turn_tokens=12, max_prompt_tokens=20, max_tokens=60),
                idle_s=30.0,
            )
    finally:
        engines.park(PoolKind.ROLLOUT)


def test_two_turns_are_played_and_what_the_environment_said_is_not_sampled(
    played: list[Played],
) -> None:
    assert {(one.end, one.turns) for one in played} == {(End.TERMINATED, 2)}
    for at, one in enumerate(played):
        response = one.response
        assert TOKENIZER.decode(response.prompt_tokens) == f"say {at // 4}"
        text = TOKENIZER.decode(response.tokens)
        first = text[: response.mask.index(False)]
        said = "".join(
            letter for letter, sampled in zip(text, response.mask, strict=True) if not sampled
        )
        assert said == " you said " + first[::-1]
        second = text[len(first) + len(said) :]
        assert 1 <= len(first) <= 12
        assert 1 <= len(second) <= 12
        assert one.reward == len(set(first)) + len(set(second))
        for logprob, sampled in zip(response.logprobs, response.mask, strict=True):
            assert (logprob < 0) == sampled


def test_the_trainer_finds_the_sampled_tokens_on_policy_and_passes_over_the_others(
    engines: RayEngines, played: list[Played]
) -> None:
    samples = [
        Sample(response=one.response, advantage=(-1.0) ** at) for at, one in enumerate(played)
    ]
    bare = [
        dataclasses.replace(one, response=dataclasses.replace(one.response, mask=()))
        for one in samples
    ]
    engines.wake(PoolKind.TRAIN)
    try:
        # Were they taken for sampled, with probability 1, nothing would be trained.
        with pytest.raises(WorkerError, match="not on-policy") as caught:
            engines.trainer().step(bare)
        assert caught.value.code == "policy.gap"
        report = engines.trainer().step(samples)
    finally:
        engines.park(PoolKind.TRAIN)
    assert report.steps == 2
    assert report.max_logprob_gap < 1e-5
    sampled = sum(one.response.num_sampled for one in samples)
    assert report.metrics["train_tokens"] == sampled
