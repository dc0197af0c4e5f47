"""What the recipes share: drawing, sampling, scoring, training, and the numbers each reports.

A recipe is written as any script for rmux would be. Rewards are computed while no device is held,
but for those that decide whether more is sampled in the same phase: see `dapo`.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import rmux
from rmux.errors import WorkerError
from rmux.job import JobSpec
from rmux.run.driver import turns
from rmux.run.driver.engines import Response, Sample, Sampling, SyncReport, TrainReport
from rmux.run.driver.recipes.episodes import Episodes
from rmux.run.driver.recipes.prompts import Drawn, draw, load_prompts
from rmux.run.driver.tokenizer import load_tokenizer
from rmux.run.sandbox.pool import RewardPool

Rewards = Sequence[float | None]
"""One per response; None where the reward failed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What was sampled, one response per entry of `drawn`."""

    drawn: Drawn
    responses: tuple[Response, ...]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rewards: Rewards | None = None
    """Where an environment gave them already."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the rewards made of a rollout."""

    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]


class Parts:
    """A job's prompt source, engines and reward sandboxes; leaving it ends the sandboxes."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self._tokenizer = load_tokenizer(spec.model_path)
        played = bool(spec.environment.function)
        self._prompts_of = None if played else load_prompts(spec.task_module)
        self._episodes = Episodes(spec, self._tokenizer) if played else None
        self._fleet, self._trainer = rmux.fleet(), rmux.trainer()
        self._scoring = threading.Lock()
        self._sampling = Sampling(
            temperature=spec.rollout.temperature,
            top_p=spec.rollout.top_p,
            max_tokens=spec.rollout.max_tokens,
        )
        self._rewards = RewardPool(
            spec.reward.function,
            timeout_s=spec.reward.timeout_s,
            max_failed=spec.reward.max_failed,
            python=spec.python,
        )

    def __enter__(self) -> Self:
        if self._episodes is not None:
            self._episodes.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rewards.close()
        if self._episodes is not None:
            self._episodes.close()

    def draw(self, iteration: int, *, refill: int = 0) -> Drawn:
        """See `prompts.draw` and, where there is an environment, `Episodes.draw`."""
        if self._prompts_of is None:
            assert self._episodes is not None
            return self._episodes.draw(iteration=iteration, refill=refill)
        return draw(
            self.spec, self._prompts_of, self._tokenizer, iteration=iteration, refill=refill
        )

    def sample(self, drawn: Drawn) -> Rollout:
        """Of the rollout phase: a response to each prompt, or an episode in its place."""

        @rmux.runtime_hook
        def on_progress(progress: Mapping[str, Any]) -> None:
            pass

        if self._episodes is not None:
            played = self._episodes.play(
                self._fleet, drawn, sampling=self._sampling, on_progress=on_progress
            )
            responses = [one.response for one in played]
            return Rollout(
                drawn=drawn,
                responses=tuple(responses),
                metrics={**describe(responses), **turns.describe(played)},
                rewards=tuple(one.reward for one in played),
            )
        responses = self._fleet.generate(
            drawn.tokens, sampling=self._sampling, seeds=drawn.seeds, on_progress=on_progress
        )
        return Rollout(drawn=drawn, responses=tuple(responses), metrics=describe(responses))

    def score(self, found: Rollout) -> Rewards:
        """The reward of each response, None where it failed. One call at a time."""
        if found.rewards is not None:
            return found.rewards
        texts = [self._tokenizer.decode(response.tokens) for response in found.responses]
        with self._scoring:
            return self._rewards.score(list(zip(found.drawn.texts, texts, strict=True)))

    def step(self, batch: Batch) -> TrainReport:
        """Of the train phase: optimizer steps over the samples."""
        report = self._trainer.step(batch.samples)
        responses = [sample.response for sample in batch.samples]
        trained = sum(len(one.prompt_tokens) + len(one.tokens) for one in responses)
        metrics = {**report.metrics, **batch.metrics, "sequence_tokens": float(trained)}
        return dataclasses.replace(report, metrics=metrics)

    def publish(self) -> SyncReport:
        """Of the sync phase."""
        return self._trainer.publish(self._fleet)


def first_iteration() -> int:
    """Where this attempt begins."""
    return int(os.environ.get("RMUX_START_ITERATION", "0"))


def describe(responses: Sequence[Response]) -> dict[str, float]:
    lengths = [len(response.tokens) for response in responses]
    return {
        "tokens": float(sum(lengths)),
        "prompt_tokens": float(sum(len(response.prompt_tokens) for response in responses)),
        "response_length": statistics.fmean(lengths),
        "response_length_max": float(max(lengths)),
        "truncated": statistics.fmean(r.finish_reason == "length" for r in responses),
    }


def merged_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Of several rollouts as of one; what environments told is added up, turns are a mean."""
    responses = [response for found in rollouts for response in found.responses]
    described = describe(responses)
    told: dict[str, float] = {}
    for found in rollouts:
        for name in found.metrics.keys() - described.keys():
            share = len(found.responses) / len(responses) if name == "turns" else 1.0
            told[name] = told.get(name, 0.0) + share * found.metrics[name]
    return {**described, **told}


def reward_metrics(spec: JobSpec, rewards: Rewards) -> dict[str, float]:
    """Mean and deviation of what is known. WorkerError 'reward.failed' when nothing is."""
    known = [value for value in rewards if value is not None]
    if not known:
        named = spec.environment if spec.environment.function else spec.reward
        raise WorkerError(
            f"the reward failed for all {len(rewards)} responses",
            code="reward.failed",
            hint=f"try {named.function} by hand; its timeout is {named.timeout_s:g} s",
        )
    return {
        "reward": statistics.fmean(known),
        "reward_std": statistics.pstdev(known),
        "reward_failed": float(len(rewards) - len(known)),
    }
