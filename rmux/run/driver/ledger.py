"""What has been sampled so far: the fleet's own book of tokens, never an engine's answer.

A request may run in several parts, on one worker after another; a part starts from the prompt and
all tokens before it. Deltas may come twice, late or out of order: each token counts once. All
tokens of a response are of one weight version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rmux.errors import WorkerError
from rmux.run.driver.engines import Exactness, Response
from rmux.run.workers.step_loop import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What to ask a worker for: the rest of one response."""

    id: str
    key: int
    """Which response it belongs to."""
    prompt: tuple[int, ...]
    """The prompt and the tokens so far."""
    max_tokens: int
    start: int
    """Tokens the response had when the part began."""


@dataclass(slots=True)
class _Account:
    prompt: tuple[int, ...]
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int | None = None
    part_id: str = ""
    exactness: Exactness = Exactness.EXACT
    finish_reason: str = ""
    """Empty until every token is there."""
    end: tuple[int, str] | None = None
    """Length at which the part finishes and why, once that is known."""
    waiting: list[tuple[int, Delta]] = field(default_factory=list)
    """Deltas that came before the ones they follow, with their positions."""


class Ledger:
    """`call` makes the part ids of this book unlike those of any other."""

    def __init__(self, *, call: int = 0) -> None:
        self._call = call
        self._accounts: dict[int, _Account] = {}
        self._parts: dict[str, Part] = {}
        self._num_parts = 0
        self.num_opened = 0
        self.num_done = 0
        self.num_tokens = 0
        """Of all responses, taken ones included."""

    def open(self, key: int, prompt: Sequence[int], *, max_tokens: int) -> None:
        """A new response. The key is free again once its response was taken."""
        self._accounts[key] = _Account(prompt=tuple(prompt), max_tokens=max_tokens)
        self.num_opened += 1

    def start(self, key: int) -> Part:
        """A new part for the rest of a response; what the part before still sends is ignored."""
        account = self._accounts[key]
        self._parts.pop(account.part_id, None)
        account.waiting.clear()
        account.end = None
        part = Part(
            id=f"{self._call}-{key}-{self._num_parts}",
            key=key,
            prompt=account.prompt + tuple(account.tokens),
            max_tokens=account.max_tokens - len(account.tokens),
            start=len(account.tokens),
        )
        self._num_parts += 1
        self._parts[part.id] = part
        account.part_id = part.id
        return part

    def restart(self, key: int) -> int:
        """Forget the tokens of a response that no worker can go on with; returns how many."""
        account = self._accounts[key]
        dropped = len(account.tokens)
        self._parts.pop(account.part_id, None)
        self._accounts[key] = _Account(prompt=account.prompt, max_tokens=account.max_tokens)
        self.num_tokens -= dropped
        return dropped

    def mark(self, key: int, exactness: Exactness) -> None:
        """A seam of the response makes it worth this."""
        self._accounts[key].exactness = exactness

    def record(self, delta: Delta, *, version: int) -> bool:
        """Book a delta sampled under `version`; returns whether it brought anything new.

        WorkerError when it contradicts tokens that are booked already, or is of another weight
        version than they are.
        """
        part = self._parts.get(delta.request_id)
        if part is None:
            return False
        account = self._accounts[part.key]
        if account.version is not None and version != account.version:
            raise WorkerError(
                f"request {delta.request_id} sent tokens of weight version {version}, its response "
                f"began under {account.version}",
                code="ledger.version",
            )
        before = len(account.tokens)
        account.waiting.append((part.start + delta.offset, delta))
        account.waiting.sort(key=lambda entry: entry[0])
        while account.waiting and account.waiting[0][0] <= len(account.tokens):
            position, following = account.waiting.pop(0)
            _book(account, following, position)
        new = len(account.tokens) - before
        if new:
            account.version = version
        self.num_tokens += new
        return self._settle(account, version) or new > 0

    def take(self, key: int) -> Response:
        """A finished response; it leaves the book."""
        account = self._accounts.pop(key)
        self._parts.pop(account.part_id, None)
        return Response(
            prompt_tokens=account.prompt,
            tokens=tuple(account.tokens),
            logprobs=tuple(account.logprobs),
            weight_version=account.version if account.version is not None else 0,
            finish_reason=account.finish_reason,
            exactness=account.exactness,
        )

    def unfinished(self) -> list[int]:
        """Keys of the responses that are not complete, in the order they were opened."""
        return [key for key, account in self._accounts.items() if not account.finish_reason]

    def __contains__(self, key: int) -> bool:
        return key in self._accounts

    def finish_reason(self, key: int) -> str:
        """Empty until every token of the response is there."""
        return self._accounts[key].finish_reason

    def length(self, key: int) -> int:
        """Tokens of the response so far."""
        return len(self._accounts[key].tokens)

    def prompt_length(self, key: int) -> int:
        return len(self._accounts[key].prompt)

    def budget(self, key: int) -> int:
        """Tokens the response may still get."""
        account = self._accounts[key]
        return account.max_tokens - len(account.tokens)

    def version(self, key: int) -> int | None:
        """The weights its tokens are of; None without any."""
        return self._accounts[key].version

    def _settle(self, account: _Account, version: int) -> bool:
        """Whether the response is complete just now."""
        if account.finish_reason or account.end is None or account.end[0] != len(account.tokens):
            return False
        account.finish_reason = account.end[1]
        account.version = version
        self.num_done += 1
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
