"""GRPO, written as any script for rmux would be: rollout, rewards, train, sync.

Everything random comes from (seed, iteration), so a job that is resumed, wherever, goes on with the
very prompts and samples it would have had. Rewards are computed between the phases: no device is
held while user code runs in the sandbox.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import rmux
from rmux.errors import SpecError, UserError, WorkerError
from rmux.job import JobSpec
from rmux.run.driver.advantage import group_advantages
from rmux.run.driver.engines import Response, Sample, Sampling, TrainReport
from rmux.run.driver.tokenizer import Tokenizer, load_tokenizer
from rmux.run.sandbox.pool import RewardPool

Prompts = Callable[[random.Random, int], Sequence[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One iteration's responses, those to one prompt side by side."""

    prompts: tuple[str, ...]
    """One per response."""
    responses: tuple[Response, ...]
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the rewards made of a rollout."""

    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]


def main(spec: JobSpec) -> None:
    """Run the iterations that are left of $RMUX_START_ITERATION … spec.iterations."""
    first = int(os.environ.get("RMUX_START_ITERATION", "0"))
    tokenizer = load_tokenizer(spec.model_path)
    prompts_of = load_prompts(spec.task_module)
    fleet, trainer = rmux.fleet(), rmux.trainer()
    sampling = Sampling(
        temperature=spec.rollout.temperature,
        top_p=spec.rollout.top_p,
        max_tokens=spec.rollout.max_tokens,
    )

    @rmux.runtime_hook
    def on_progress(progress: Mapping[str, Any]) -> None:
        pass

    @rmux.phase("rollout")
    def rollout(iteration: int, prompts: Sequence[str], tokens: Sequence[tuple[int, ...]]) -> Any:
        seeds = sample_seeds(spec, iteration=iteration, count=len(tokens))
        responses = fleet.generate(tokens, sampling=sampling, seeds=seeds, on_progress=on_progress)
        return Rollout(
            prompts=tuple(prompts), responses=tuple(responses), metrics=describe(responses)
        )

    @rmux.phase("train")
    def train(batch: Batch) -> TrainReport:
        report = trainer.step(batch.samples)
        return dataclasses.replace(report, metrics={**report.metrics, **batch.metrics})

    @rmux.phase("sync")
    def sync() -> Any:
        return trainer.publish(fleet)

    with RewardPool(
        spec.reward.function, timeout_s=spec.reward.timeout_s, python=spec.python
    ) as rewards:
        for iteration in range(first, spec.iterations):
            prompts = draw_prompts(spec, prompts_of, iteration=iteration)
            found = rollout(iteration, prompts, encode(spec, tokenizer, prompts))
            train(score(found, rewards=rewards, tokenizer=tokenizer, spec=spec))
            sync()


def load_prompts(module: str) -> Prompts:
    """The function that 'file.py:name' names. SpecError when there is none."""
    path, _, name = module.rpartition(":")
    found = importlib.util.spec_from_file_location("rmux_task", path)
    if found is None or found.loader is None or not Path(path).is_file():
        raise SpecError(f"task.prompts: no Python file {path}")
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    if not callable(prompts_of := getattr(loaded, name, None)):
        raise SpecError(f"task.prompts: no function {name!r} in {path}")
    return cast("Prompts", prompts_of)


def draw_prompts(spec: JobSpec, prompts_of: Prompts, *, iteration: int) -> list[str]:
    """This iteration's prompts, each as often as it is sampled. UserError for wrong ones."""
    rng = random.Random(f"{spec.seed}/{iteration}/prompts")
    drawn = list(prompts_of(rng, spec.rollout.prompts))
    if len(drawn) != spec.rollout.prompts or not all(isinstance(text, str) for text in drawn):
        raise UserError(
            f"the prompt source was asked for {spec.rollout.prompts} texts and gave {len(drawn)}",
            code="task.prompt",
        )
    return [prompt for prompt in drawn for _ in range(spec.rollout.samples_per_prompt)]


def encode(spec: JobSpec, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[tuple[int, ...]]:
    """The tokens of each prompt. UserError for one over `rollout.max_prompt_tokens`."""
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    longest = max(len(tokens) for tokens in encoded)
    if longest > spec.rollout.max_prompt_tokens:
        raise UserError(
            f"a prompt has {longest} tokens, rollout.max_prompt_tokens is "
            f"{spec.rollout.max_prompt_tokens}",
            code="task.prompt",
        )
    return encoded


def sample_seeds(spec: JobSpec, *, iteration: int, count: int) -> list[int]:
    """One per response, the same in every attempt."""
    rng = random.Random(f"{spec.seed}/{iteration}/samples")
    return [rng.getrandbits(31) for _ in range(count)]


def describe(responses: Sequence[Response]) -> dict[str, float]:
    lengths = [len(response.tokens) for response in responses]
    return {
        "tokens": float(sum(lengths)),
        "prompt_tokens": float(sum(len(response.prompt_tokens) for response in responses)),
        "response_length": statistics.fmean(lengths),
        "response_length_max": float(max(lengths)),
        "truncated": statistics.fmean(r.finish_reason == "length" for r in responses),
    }


def score(found: Rollout, *, rewards: Any, tokenizer: Tokenizer, spec: JobSpec) -> Batch:
    """Rewards and advantages; a response whose reward failed leaves its group, and is counted.

    WorkerError 'reward.failed' when none is left.
    """
    texts = [tokenizer.decode(response.tokens) for response in found.responses]
    scores: list[float | None] = rewards.score(list(zip(found.prompts, texts, strict=True)))
    known = [value for value in scores if value is not None]
    if not known:
        raise WorkerError(
            f"the reward failed for all {len(scores)} responses",
            code="reward.failed",
            hint=f"try {spec.reward.function} by hand; reward.timeout is "
            f"{spec.reward.timeout_s:g} s",
        )
    width = spec.rollout.samples_per_prompt
    advantages = [
        advantage
        for start in range(0, len(scores), width)
        for advantage in group_advantages(scores[start : start + width])
    ]
    samples = tuple(
        Sample(response=response, advantage=advantage)
        for response, advantage in zip(found.responses, advantages, strict=True)
        if advantage is not None
    )
    return Batch(
        samples=samples,
        metrics={
            "reward": statistics.fmean(known),
            "reward_std": statistics.pstdev(known),
            "reward_failed": float(len(scores) - len(known)),
        },
    )
