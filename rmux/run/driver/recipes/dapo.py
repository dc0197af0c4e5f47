"""DAPO: as GRPO, but a prompt whose responses all earned the same is replaced by another.

arXiv 2503.14476: a wider upper clip and a mean over tokens (both are the spec's), and dynamic
sampling (section 3.2). Further prompts are sampled in the same rollout phase, `rollout.refills`
times at most, for a new turn in the group would cost a whole round. What is still missing then is
trained without. The rewards that decide hold the devices, so their time is bounded and planned for
(`rmux.profile.tokens.held_reward_s`): those that take longer are waited for after the phase, and
nothing more is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import rmux
from rmux.job import JobSpec
from rmux.profile.tokens import held_reward_s
from rmux.run.driver.advantage import grouped_advantages
from rmux.run.driver.engines import Sample, SyncReport, TrainReport
from rmux.run.driver.recipes import pace, parts
from rmux.run.driver.recipes.background import Background
from rmux.run.driver.recipes.parts import Batch, Parts, Rewards, Rollout
from rmux.run.driver.recipes.prompts import Drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What one phase sampled, first and again; the rewards of the last round may still be out."""

    rollouts: tuple[Rollout, ...]
    rewards: tuple[Background[Rewards], ...]
    metrics: Mapping[str, float]


def main(spec: JobSpec) -> None:
    """Run the iterations that are left of $RMUX_START_ITERATION … spec.iterations."""
    with Parts(spec) as job:

        @rmux.phase("rollout")
        def sample(draws: Sequence[Drawn]) -> Rounds:
            return sample_rounds(job, draws)

        @rmux.phase("train")
        def train(batch: Batch) -> TrainReport:
            return job.step(batch)

        @rmux.phase("sync")
        def sync() -> SyncReport:
            return job.publish()

        def rollout(iteration: int) -> Batch:
            # User code draws before the phase: prompts for every refill that may come.
            draws = [job.draw(iteration, refill=n) for n in range(1 + spec.rollout.refills)]
            return batch_of(spec, sample(draws))

        pace.run(
            spec,
            first=parts.first_iteration(),
            rollout=rollout,
            train=lambda _, batch: train(batch),
            sync=lambda _: sync(),
        )


def sample_rounds(job: Parts, draws: Sequence[Drawn]) -> Rounds:
    """All prompts of the first draw; of each further one as many as are missing by then."""
    width, wait_s = job.spec.rollout.samples_per_prompt, held_reward_s(job.spec)
    missing = job.spec.rollout.prompts
    rollouts: list[Rollout] = []
    rewards: list[Background[Rewards]] = []
    for left, drawn in zip(range(len(draws) - 1, -1, -1), draws, strict=True):
        found = job.sample(drawn.first(missing * width))
        rollouts.append(found)
        rewards.append(Background(lambda found=found: job.score(found)))  # type: ignore[misc]
        if not left or not (found.rewards or rewards[-1].wait(wait_s)):
            break
        missing -= sum(differ(group) for group in groups_of(rewards[-1].result(), width=width))
        if missing == 0:
            break
    metrics = {**parts.merged_metrics(rollouts), "rounds": float(len(rollouts))}
    return Rounds(rollouts=tuple(rollouts), rewards=tuple(rewards), metrics=metrics)


def batch_of(spec: JobSpec, rounds: Rounds) -> Batch:
    """The groups that teach something. The reward reported is that of all that was sampled.

    WorkerError 'reward.failed' when no response has one.
    """
    width = spec.rollout.samples_per_prompt
    rewards = [value for scored in rounds.rewards for value in scored.result()]
    responses = [response for found in rounds.rollouts for response in found.responses]
    metrics = parts.reward_metrics(spec, rewards)
    kept = [differ(group) for group in groups_of(rewards, width=width)]
    advantages = grouped_advantages(rewards, width=width)
    samples = tuple(
        Sample(response=response, advantage=advantage)
        for index, (response, advantage) in enumerate(zip(responses, advantages, strict=True))
        if kept[index // width] and advantage is not None
    )
    counts = {
        "groups": float(sum(kept)),
        "groups_dropped": float(len(kept) - sum(kept)),
        "groups_missing": float(spec.rollout.prompts - sum(kept)),
    }
    return Batch(samples=samples, metrics={**metrics, **counts})


def groups_of(rewards: Rewards, *, width: int) -> list[Rewards]:
    return [rewards[start : start + width] for start in range(0, len(rewards), width)]


def differ(group: Rewards) -> bool:
    """Whether a group's rewards are not all equal; those that failed do not count."""
    return len({value for value in group if value is not None}) > 1
