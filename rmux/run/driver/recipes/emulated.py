"""The loop that emulated jobs run unless their spec names a script: rollout, train, sync."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rmux
from rmux.job import JobSpec
from rmux.run.driver.engines import Response, Sample, Sampling
from rmux.run.driver.recipes import pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    responses: tuple[Response, ...]
    metrics: Mapping[str, float]


def main(spec: JobSpec) -> None:
    """Run the iterations that are left. The reward tends to 1 as the weight version grows."""
    fleet, trainer = rmux.fleet(), rmux.trainer()
    sampling = Sampling(max_tokens=spec.rollout.max_tokens)
    prompts = [(index,) for index in range(spec.rollout.num_samples)]

    @rmux.runtime_hook
    def on_progress(progress: Mapping[str, Any]) -> None:
        pass

    @rmux.phase("rollout")
    def rollout() -> Sampled:
        responses = fleet.generate(prompts, sampling=sampling, on_progress=on_progress)
        metrics = {"reward": 1 - 1 / (2 + responses[0].weight_version)}
        return Sampled(responses=tuple(responses), metrics=metrics)

    @rmux.phase("train")
    def train(found: Sampled) -> Any:
        return trainer.step([Sample(response=r, advantage=0.0) for r in found.responses])

    @rmux.phase("sync")
    def sync() -> Any:
        return trainer.publish(fleet)

    pace.run(
        spec,
        first=int(os.environ["RMUX_START_ITERATION"]),
        rollout=lambda _: rollout(),
        train=lambda _, found: train(found),
        sync=lambda _: sync(),
    )
