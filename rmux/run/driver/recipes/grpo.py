"""GRPO: each response is measured against the other responses to its prompt.

DeepSeekMath (arXiv 2402.03300), section 4.1. A response whose reward failed leaves its group, and
is counted.
"""

from __future__ import annotations

import rmux
from rmux.job import JobSpec
from rmux.run.driver.advantage import grouped_advantages
from rmux.run.driver.engines import Sample, SyncReport, TrainReport
from rmux.run.driver.recipes import pace, parts
from rmux.run.driver.recipes.parts import Batch, Parts, Rewards, Rollout
from rmux.run.driver.recipes.prompts import Drawn


def main(spec: JobSpec) -> None:
    """Run the iterations that are left of $RMUX_START_ITERATION … spec.iterations."""
    with Parts(spec) as job:

        @rmux.phase("rollout")
        def sample(drawn: Drawn) -> Rollout:
            return job.sample(drawn)

        @rmux.phase("train")
        def train(batch: Batch) -> TrainReport:
            return job.step(batch)

        @rmux.phase("sync")
        def sync() -> SyncReport:
            return job.publish()

        def rollout(iteration: int) -> Batch:
            found = sample(job.draw(iteration))
            return batch_of(spec, found, job.score(found))

        pace.run(
            spec,
            first=parts.first_iteration(),
            rollout=rollout,
            train=lambda _, batch: train(batch),
            sync=lambda _: sync(),
        )


def batch_of(spec: JobSpec, found: Rollout, rewards: Rewards) -> Batch:
    """WorkerError 'reward.failed' when no response has a reward."""
    metrics = parts.reward_metrics(spec, rewards)
    advantages = grouped_advantages(rewards, width=spec.rollout.samples_per_prompt)
    samples = tuple(
        Sample(response=response, advantage=advantage)
        for response, advantage in zip(found.responses, advantages, strict=True)
        if advantage is not None
    )
    return Batch(samples=samples, metrics=metrics)
