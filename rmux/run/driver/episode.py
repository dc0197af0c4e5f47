"""One episode of a rollout of several turns: its tokens, what it earned, when it is over."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

from rmux.errors import RmuxError, StaleWeightsError
from rmux.run.driver.engines import Exactness, Response
from rmux.run.driver.tokenizer import Tokenizer
from rmux.run.sandbox.host import Move, Outcome
from rmux.run.sandbox.values import MAX_NUMBER


class End(StrEnum):
    """Why an episode is over."""

    TERMINATED = "terminated"
    """The environment reached an end of its own."""
    TRUNCATED = "truncated"
    """The environment broke it off."""
    TURNS = "turns"
    """`max_turns` were played."""
    LENGTH = "length"
    """No token was left of the limit."""
    ACTION = "action"
    """The model said what is no action; what was earned until then counts."""
    FAILED = "failed"
    """The environment failed: the episode has no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What an episode begins with: all that is random in it follows from these."""

    reset_seed: int
    """Of the environment; episodes that are compared with each other have the same."""
    seed: int
    """Of the sampling, turn by turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_turns: int
    turn_tokens: int
    """Sampled in one turn at most."""
    max_prompt_tokens: int
    """Of the first observation."""
    max_tokens: int
    """Of a whole response, what the environment said included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An episode that is over; `reward` is the sum over its steps, None where it failed.

    The response of one that failed holds what there was of it.
    """

    response: Response
    reward: float | None
    turns: int
    end: End
    reason: str = ""
    """Of a failure or an unknown action."""


@dataclass(slots=True)
class Play:
    """An episode under way. `prompt` is what is to be asked of the fleet next."""

    key: int
    start: Episode
    limits: Limits
    first: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    version: int | None = None
    exactness: Exactness = Exactness.EXACT
    reward: float = 0.0
    turns: int = 0
    end: End | None = None
    reason: str = ""

    @property
    def prompt(self) -> tuple[int, ...]:
        return (*self.first, *self.tokens)

    @property
    def turn_tokens(self) -> int:
        """Most tokens that the next turn may sample."""
        return min(self.limits.turn_tokens, self.limits.max_tokens - len(self.tokens))

    @property
    def turn_seed(self) -> int:
        return random.Random(f"{self.start.seed}/{self.turns}").getrandbits(31)

    def sampled(self, turn: Response) -> None:
        """Book a turn. StaleWeightsError when it is of other weights than the turns before."""
        if self.version not in (None, turn.weight_version):
            raise StaleWeightsError(
                f"an episode began under weight version {self.version} and its turn "
                f"{self.turns + 1} was sampled under {turn.weight_version}",
                details={"began": self.version, "version": turn.weight_version},
            )
        self.version = turn.weight_version
        self.tokens += turn.tokens
        self.logprobs += turn.logprobs
        self.mask += [True] * len(turn.tokens)
        self.turns += 1
        if turn.exactness is not Exactness.EXACT:
            self.exactness = turn.exactness

    def moved(self, move: Move, tokenizer: Tokenizer) -> None:
        """Book the environment's answer; `end` is set when it was the last one."""
        if move.outcome is not Outcome.OK:
            self.reason = move.reason
            self.end = End.ACTION if move.outcome is Outcome.ACTION else End.FAILED
            return
        self.reward += move.reward
        if abs(self.reward) > MAX_NUMBER:
            self.fail(f"its rewards add up to {self.reward:g}, beyond ±{MAX_NUMBER:g}")
        elif move.terminated or move.truncated:
            self.end = End.TERMINATED if move.terminated else End.TRUNCATED
        elif self.turns == self.limits.max_turns:
            self.end = End.TURNS
        else:
            self._observe(move.text, tokenizer)

    def fail(self, reason: str) -> None:
        self.end, self.reason = End.FAILED, reason

    def played(self) -> Played:
        assert self.end is not None
        response = Response(
            prompt_tokens=self.first,
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            mask=tuple(self.mask),
            weight_version=self.version or 0,
            finish_reason="length" if self.end is End.LENGTH else "stop",
            exactness=self.exactness,
        )
        return Played(
            response=response,
            reward=None if self.end is End.FAILED else self.reward,
            turns=self.turns,
            end=self.end,
            reason=self.reason,
        )

    def _observe(self, text: str, tokenizer: Tokenizer) -> None:
        try:
            said = tokenizer.encode(text)
        except RmuxError as error:
            self.fail(f"an observation has no tokens: {error.message}")
            return
        if not self.turns:
            if not 1 <= len(said) <= self.limits.max_prompt_tokens:
                self.fail(
                    f"the first observation has {len(said)} tokens; 1 to "
                    f"rollout.max_prompt_tokens, {self.limits.max_prompt_tokens}, are allowed"
                )
            self.first = said
        elif len(self.tokens) + len(said) >= self.limits.max_tokens:
            self.end = End.LENGTH
        else:
            self.tokens += said
            self.logprobs += [0.0] * len(said)
            self.mask += [False] * len(said)
