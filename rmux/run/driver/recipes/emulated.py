"""The loop that emulated jobs run unless their spec names a script: rollout, train, sync."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import rmux
from rmux.job import JobSpec
from rmux.run.driver.engines import Response, Sample, Sampling


def main(spec: JobSpec) -> None:
    """Run the iterations that are left. The reward tends to 1 as the weight version grows."""
    fleet, trainer = rmux.fleet(), rmux.trainer()
    sampling = Sampling(max_tokens=spec.rollout.max_tokens)
    prompts = [(index,) for index in range(spec.rollout.num_samples)]

    @rmux.runtime_hook
    def on_progress(progress: Mapping[str, Any]) -> None:
        pass

    @rmux.phase("rollout")
    def rollout() -> dict[str, float]:
        responses[:] = fleet.generate(prompts, sampling=sampling, on_progress=on_progress)
        return {"reward": 1 - 1 / (2 + responses[0].weight_version)}

    @rmux.phase("train")
    def train() -> Any:
        return trainer.step([Sample(response=r, advantage=0.0) for r in responses])

    @rmux.phase("sync")
    def sync() -> Any:
        return trainer.publish(fleet)

    responses: list[Response] = []
    for _ in range(int(os.environ["RMUX_START_ITERATION"]), spec.iterations):
        rollout()
        train()
        sync()
