"""Episodes of an iteration: seeds of environments and samples, and how a spec has them played."""

from __future__ import annotations

import logging
import random

from rmux.job import JobSpec
from rmux.profile.tokens import environment_s
from rmux.run.driver import turns
from rmux.run.driver.engines import Fleet, Progress, Sampling
from rmux.run.driver.episode import End, Episode, Limits, Played
from rmux.run.driver.recipes.prompts import Drawn
from rmux.run.driver.tokenizer import Tokenizer
from rmux.run.sandbox.environments import EnvironmentPool

_log = logging.getLogger(__name__)

_IDLE_S = 20.0
"""Environments that hang or die may keep idle devices for so long at least. This and the others in
`play` stay below what a controller grants a rollout before it takes the job for hung: 60 s or five
times its plan, which counts with `environment_s`."""


class Episodes:
    """The environments of a job whose spec names one; leaving it ends their processes."""

    def __init__(self, spec: JobSpec, tokenizer: Tokenizer) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        found, rollout = spec.environment, spec.rollout
        self._pool = EnvironmentPool(
            found.function,
            timeout_s=found.timeout_s,
            num_processes=found.processes,
            python=spec.python,
        )
        self._limits = Limits(
            max_turns=found.max_turns,
            turn_tokens=found.turn_tokens or rollout.max_tokens,
            max_prompt_tokens=rollout.max_prompt_tokens,
            max_tokens=rollout.max_tokens,
        )

    def start(self) -> None:
        """Import now, while no device is held. WorkerError when that fails."""
        try:
            self._pool.start()
        except BaseException:
            self.close()
            raise

    def draw(self, *, iteration: int, refill: int = 0) -> Drawn:
        """Seeds of one round: environments have one per prompt, samples each their own."""
        rollout = self._spec.rollout
        where = f"{self._spec.seed}/{iteration}"
        suffix = f"/{refill}" if refill else ""
        starts = random.Random(f"{where}/resets{suffix}")
        resets = [starts.getrandbits(31) for _ in range(rollout.prompts)]
        seeds = random.Random(f"{where}/samples{suffix}")
        count = rollout.num_samples
        return Drawn(
            texts=("",) * count,
            tokens=((),) * count,
            seeds=tuple(seeds.getrandbits(31) for _ in range(count)),
            resets=tuple(seed for seed in resets for _ in range(rollout.samples_per_prompt)),
        )

    def play(
        self, fleet: Fleet, drawn: Drawn, *, sampling: Sampling, on_progress: Progress
    ) -> list[Played]:
        """Of the rollout phase; see `turns.play`. Why episodes failed is logged."""
        episodes = [
            Episode(reset_seed=reset, seed=seed)
            for reset, seed in zip(drawn.resets, drawn.seeds, strict=True)
        ]
        found = self._spec.environment
        played = turns.play(
            fleet,
            episodes,
            environments=self._pool,
            tokenizer=self._tokenizer,
            sampling=sampling,
            limits=self._limits,
            idle_s=max(_IDLE_S, 2 * found.timeout_s, 4 * environment_s(self._spec)),
            max_failed=found.max_failed,
            on_progress=on_progress,
        )
        if reasons := [one.reason for one in played if one.end is End.FAILED]:
            _log.warning(
                "%s failed in %d of %d episodes, first: %s",
                found.function,
                len(reasons),
                len(played),
                reasons[0],
            )
        return played

    def close(self) -> None:
        self._pool.close()
