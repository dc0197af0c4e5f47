"""What has been sampled so far: the fleet's own book of tokens, never an engine's answer.

A request may run in several parts, on one worker after another; a part starts from the prompt and
all tokens before it. Deltas may come twice, late or out of order: each token counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rmux.errors import WorkerError
from rmux.run.driver.engines import Response
from rmux.run.workers.step_loop import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What to ask a worker for: the rest of one response."""

    id: str
    index: int
    """Which prompt it answers."""
    prompt: tuple[int, ...]
    """The prompt and the tokens so far."""
    max_tokens: int
    start: int
    """Tokens the response had when the part began."""


@dataclass(slots=True)
class _Account:
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int | None = None
    parts: int = 0
    part_id: str = ""
    finish_reason: str = ""
    """Empty until every token is there."""
    end: tuple[int, str] | None = None
    """Length at which the part finishes and why, once that is known."""
    waiting: list[tuple[int, Delta]] = field(default_factory=list)
    """Deltas that came before the ones they follow, with their positions."""


class Ledger:
    """`call` makes the part ids of this batch unlike those of any other."""

    def __init__(self, prompts: Sequence[Sequence[int]], *, max_tokens: int, call: int = 0) -> None:
        self._accounts = [_Account(prompt=tuple(prompt)) for prompt in prompts]
        self._max_tokens = max_tokens
        self._call = call
        self._parts: dict[str, Part] = {}
        self._done = 0

    def start(self, index: int) -> Part:
        """A new part for the rest of a response; what the part before still sends is ignored."""
        account = self._accounts[index]
        self._parts.pop(account.part_id, None)
        account.waiting.clear()
        account.end = None
        part = Part(
            id=f"{self._call}-{index}-{account.parts}",
            index=index,
            prompt=account.prompt + tuple(account.tokens),
            max_tokens=self._max_tokens - len(account.tokens),
            start=len(account.tokens),
        )
        account.parts += 1
        self._parts[part.id] = part
        account.part_id = part.id
        return part

    def record(self, delta: Delta, *, version: int) -> bool:
        """Book a delta sampled under `version`; returns whether it brought anything new.

        WorkerError when it contradicts tokens that are booked already.
        """
        part = self._parts.get(delta.request_id)
        if part is None:
            return False
        account = self._accounts[part.index]
        before = len(account.tokens)
        account.waiting.append((part.start + delta.offset, delta))
        account.waiting.sort(key=lambda entry: entry[0])
        while account.waiting and account.waiting[0][0] <= len(account.tokens):
            position, following = account.waiting.pop(0)
            _book(account, following, position)
        account.version = version if account.version is None else min(account.version, version)
        return self._settle(account) or len(account.tokens) > before

    def response(self, index: int) -> Response:
        account = self._accounts[index]
        return Response(
            prompt_tokens=account.prompt,
            tokens=tuple(account.tokens),
            logprobs=tuple(account.logprobs),
            weight_version=account.version if account.version is not None else 0,
            finish_reason=account.finish_reason,
        )

    def unfinished(self) -> list[int]:
        """Prompts whose response is not complete."""
        return [at for at, account in enumerate(self._accounts) if not account.finish_reason]

    @property
    def num_tokens(self) -> int:
        return sum(len(account.tokens) for account in self._accounts)

    @property
    def num_done(self) -> int:
        return self._done

    def _settle(self, account: _Account) -> bool:
        """Whether the response is complete just now."""
        if account.finish_reason or account.end is None or account.end[0] != len(account.tokens):
            return False
        account.finish_reason = account.end[1]
        self._done += 1
        return True


def _book(account: _Account, delta: Delta, position: int) -> None:
    known = len(account.tokens) - position
    booked = account.tokens[position : position + len(delta.tokens)]
    if tuple(booked) != delta.tokens[: len(booked)]:
        raise WorkerError(
            f"request {delta.request_id} sent other tokens for positions {position} to "
            f"{position + len(booked)} than before",
            code="ledger.conflict",
        )
    account.tokens.extend(delta.tokens[known:])
    account.logprobs.extend(delta.logprobs[known:])
    if delta.finish_reason:
        account.end = (position + len(delta.tokens), delta.finish_reason)
