"""Rollouts of several turns: the model says something, an environment answers, and so on.

Tokens in, tokens out: the prompt of a turn is every token so far, the sampled ones as they were
sampled, and those of the environment's answer appended; nothing is tokenized twice. Each turn is a
request of its own to the fleet, made as soon as its environment answered.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rmux.errors import WorkerError
from rmux.run.driver.engines import Fleet, Progress, Response, Sampling, Stream
from rmux.run.driver.episode import End, Episode, Limits, Play, Played
from rmux.run.driver.tokenizer import Tokenizer
from rmux.run.sandbox.host import Move

_SAMPLING_S = 0.5
"""How long to wait for a turn when no environment is being asked."""

_IDLE = "the environments kept the devices idle for too long"

_BOTH_S = 0.01
"""How long to wait for a turn before looking at the environments' answers again."""


class Environments(Protocol):
    """See `rmux.run.sandbox.environments.EnvironmentPool`."""

    def reset(self, episode: int, *, seed: int) -> None: ...

    def step(self, episode: int, text: str) -> None: ...

    def end(self, episode: int) -> None: ...

    def next(self, timeout_s: float) -> Move | None: ...


def play(
    fleet: Fleet,
    episodes: Sequence[Episode],
    *,
    environments: Environments,
    tokenizer: Tokenizer,
    sampling: Sampling,
    limits: Limits,
    idle_s: float,
    max_failed: float = 1.0,
    on_progress: Progress | None = None,
) -> list[Played]:
    """Play every episode to its end, in the rollout phase; in order.

    Environments may keep the devices waiting, with nothing to sample, for `idle_s` in total: then
    the episodes that are not over fail. WorkerError 'environment.failed' as soon as more than the
    fraction `max_failed` of the episodes failed; StaleWeightsError when the weights change within
    an episode.
    """
    plays = [Play(key=key, start=episode, limits=limits) for key, episode in enumerate(episodes)]
    table = _Table(
        plays, environments=environments, tokenizer=tokenizer, sampling=sampling, idle_s=idle_s
    )
    progress = None if on_progress is None else table.progress(on_progress)
    try:
        table.reset()
        with fleet.stream(on_progress=progress) as stream:
            while table.open:
                table.turn(stream)
                table.check(max_failed)
    finally:
        for one in plays:
            environments.end(one.key)
    return [one.played() for one in plays]


def describe(played: Sequence[Played]) -> dict[str, float]:
    """Turns, how episodes ended, and how much of the responses the environments said."""
    ends = Counter(one.end for one in played)
    said = sum(len(one.response.tokens) - one.response.num_sampled for one in played)
    return {
        "turns": statistics.fmean(one.turns for one in played),
        "observation_tokens": float(said),
        **{f"ended_{end}": float(ends[end]) for end in End},
    }


class _Table:
    """The episodes that are not over, by what they wait for."""

    def __init__(
        self,
        plays: Sequence[Play],
        *,
        environments: Environments,
        tokenizer: Tokenizer,
        sampling: Sampling,
        idle_s: float,
    ) -> None:
        self._plays = plays
        self._environments, self._tokenizer = environments, tokenizer
        self._sampling, self._idle_s = sampling, idle_s
        self._sampled: set[int] = set()
        """Keys of those whose turn the fleet samples."""
        self._stepped: set[int] = set()
        """Keys of those whose environment was asked."""
        self._failed: list[Play] = []

    @property
    def open(self) -> bool:
        return bool(self._sampled or self._stepped)

    def reset(self) -> None:
        for one in self._plays:
            self._stepped.add(one.key)
            self._environments.reset(one.key, seed=one.start.reset_seed)

    def turn(self, stream: Stream) -> None:
        """Wait for whatever comes first, and let it go on."""
        if self._sampled:
            found = stream.next(_BOTH_S if self._stepped else _SAMPLING_S)
            if found is not None:
                self._answered(*found)
            move = self._environments.next(0)
        else:
            move = self._wait()
        while move is not None:
            self._moved(move, stream)
            move = self._environments.next(0)

    def check(self, max_failed: float) -> None:
        if not self._failed or len(self._failed) <= max_failed * len(self._plays):
            return
        # What made the others wait says more than that they did.
        own = [one.reason for one in self._failed if one.reason != _IDLE]
        reasons = Counter(own or [_IDLE])
        raise WorkerError(
            f"the environment failed in {len(self._failed)} of {len(self._plays)} episodes: "
            f"{reasons.most_common(1)[0][0]}",
            code="environment.failed",
            hint=f"environment.max_failed is {max_failed:g}; play the environment by hand",
            details={"reasons": dict(reasons.most_common(5))},
        )

    def progress(self, on_progress: Progress) -> Progress:
        """What the fleet tells of turns, told of episodes."""

        def tell(numbers: Mapping[str, Any]) -> None:
            done = sum(one.end is not None for one in self._plays)
            episodes = {"responses_done": done, "responses": len(self._plays)}
            on_progress({**numbers, **episodes})

        return tell

    def _answered(self, key: int, turn: Response) -> None:
        self._sampled.remove(key)
        one = self._plays[key]
        one.sampled(turn)
        self._stepped.add(key)
        self._environments.step(key, self._tokenizer.decode(turn.tokens))

    def _moved(self, move: Move, stream: Stream) -> None:
        if move.episode not in self._stepped:
            return  # it was given up
        self._stepped.remove(move.episode)
        one = self._plays[move.episode]
        one.moved(move, self._tokenizer)
        if one.end is not None:
            self._over(one)
            return
        sampling = replace(self._sampling, max_tokens=one.turn_tokens)
        stream.submit(one.key, one.prompt, sampling=sampling, seed=one.turn_seed)
        self._sampled.add(one.key)

    def _wait(self) -> Move | None:
        """For an environment, while the devices have nothing to do."""
        began_s = time.monotonic()
        move = self._environments.next(max(0.0, self._idle_s))
        self._idle_s -= time.monotonic() - began_s
        if move is None:
            for key in tuple(self._stepped):
                self._stepped.remove(key)
                self._plays[key].fail(_IDLE)
                self._over(self._plays[key])
        return move

    def _over(self, one: Play) -> None:
        self._environments.end(one.key)
        if one.end is End.FAILED:
            self._failed.append(one)
