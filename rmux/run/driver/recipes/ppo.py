"""PPO with a value head: what each token was worth against what was expected at it.

arXiv 1707.06347, with generalized advantage estimation (arXiv 1506.02438). Values, and so the
advantages, are computed where the model is: in the training ranks, before their first step.
"""

from __future__ import annotations

import rmux
from rmux.job import JobSpec
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
    """WorkerError 'reward.failed' when no response has a reward; those without one are left out."""
    metrics = parts.reward_metrics(spec, rewards)
    samples = tuple(
        Sample(response=response, reward=reward)
        for response, reward in zip(found.responses, rewards, strict=True)
        if reward is not None
    )
    return Batch(samples=samples, metrics=metrics)
