"""The rollout fleet: single requests to whatever workers are awake, booked in its own ledger.

Routing is fixed before the first token, by tokens and not by time, so that the same prompts and
seeds meet the same batches, whatever else the host is doing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from rmux.errors import ConflictError, RmuxError, StaleWeightsError, UserError
from rmux.run.driver.engines import Progress, Response, Sampling
from rmux.run.driver.ledger import Ledger, Part
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers.vllm_engine import Request, check_sampling

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_CALL_S = 60.0
_DEATHS = ("backend.died", "engine.failed")


@dataclass(slots=True)
class RolloutHandle:
    """One device's worker as the driver sees it."""

    device: str
    actor: Any
    awake: bool = False
    version: int = 0
    cursor: int = 0
    """Last flush of the worker that is booked."""
    dead: RmuxError | None = None

    @property
    def usable(self) -> bool:
        return self.awake and self.dead is None


@dataclass(slots=True)
class _Batch:
    """One call of `generate` in flight."""

    ledger: Ledger
    sampling: Sampling
    seeds: tuple[int, ...]
    holder: dict[str, RolloutHandle] = field(default_factory=dict)
    """Part id to the worker that runs it."""
    running: dict[int, str] = field(default_factory=dict)
    """Prompt index to its part id."""


class RayFleet:
    """Fleet over Ray actors. `trainer_version` gives the version that responses are measured by."""

    def __init__(
        self,
        session: RaySession,
        handles: Sequence[RolloutHandle],
        *,
        max_model_len: int,
        max_staleness: int,
        seed: int,
        trainer_version: Callable[[], int],
    ) -> None:
        self._session = session
        self._handles = tuple(handles)
        self._max_model_len = max_model_len
        self._max_staleness = max_staleness
        self._seed = seed
        self._trainer_version = trainer_version
        self._calls = 0
        self._calls_of_version: tuple[int, int] = (-1, 0)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        seeds: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[Response]:
        """One response per prompt, in order.

        Without `seeds` they follow from the job's seed, the weight version and the number of calls
        since. UserError for sampling or prompts the engines do not take, StaleWeightsError past
        `max_staleness`, BackendError when the last worker died.
        """
        self._check(prompts, sampling, seeds)
        if not prompts:
            return []
        self._calls += 1
        batch = _Batch(
            ledger=Ledger(prompts, max_tokens=sampling.max_tokens, call=self._calls),
            sampling=sampling,
            seeds=tuple(seeds) if seeds is not None else self._own_seeds(len(prompts)),
        )
        try:
            self._send(batch, range(len(prompts)))
            self._collect(batch, on_progress)
        finally:
            self._abandon(batch)
        return [batch.ledger.response(index) for index in range(len(prompts))]

    def _check(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int] | None
    ) -> None:
        check_sampling(sampling)
        if seeds is not None and len(seeds) != len(prompts):
            raise UserError(f"{len(seeds)} seeds for {len(prompts)} prompts", code="usage.seeds")
        for index, prompt in enumerate(prompts):
            if not prompt or len(prompt) + sampling.max_tokens > self._max_model_len:
                raise UserError(
                    f"prompt {index} has {len(prompt)} tokens; with a response of up to "
                    f"{sampling.max_tokens} it must have 1 to "
                    f"{self._max_model_len - sampling.max_tokens}",
                    code="usage.prompt",
                    hint="raise rollout.max_prompt_tokens or rollout.max_tokens in the spec",
                )
        usable = self._usable()
        oldest = self._trainer_version() - self._max_staleness
        for handle in usable:
            if handle.version < oldest:
                raise StaleWeightsError(
                    f"{handle.device} holds weight version {handle.version}, the trainer is at "
                    f"{self._trainer_version()} and {self._max_staleness} versions are allowed",
                    details={"device": handle.device, "version": handle.version},
                )

    def _usable(self) -> list[RolloutHandle]:
        usable = [handle for handle in self._handles if handle.usable]
        if not usable:
            dead = next((handle.dead for handle in reversed(self._handles) if handle.dead), None)
            if dead is not None:
                raise dead
            raise ConflictError("no rollout worker is awake", code="fleet.asleep")
        return usable

    def _own_seeds(self, count: int) -> tuple[int, ...]:
        version = self._trainer_version()
        calls = self._calls_of_version[1] + 1 if self._calls_of_version[0] == version else 0
        self._calls_of_version = (version, calls)
        return tuple(_seed(self._seed, version, calls, index) for index in range(count))

    def _send(self, batch: _Batch, indices: Sequence[int]) -> None:
        """Share out new parts for these responses, each worker's in one call."""
        usable = self._usable()
        load = {id(handle): self._load(batch, handle) for handle in usable}
        shares: dict[int, list[Request]] = {id(handle): [] for handle in usable}
        for index in indices:
            part = batch.ledger.start(index)
            # Of equals the first: the choice must not hang on anything but the batch.
            handle = min(usable, key=lambda one: load[id(one)])
            load[id(handle)] += len(part.prompt) + part.max_tokens
            shares[id(handle)].append(_request(part, batch))
            batch.holder[part.id] = handle
            batch.running[index] = part.id
        for handle in usable:
            if not shares[id(handle)]:
                continue
            ref = handle.actor.submit.remote(shares[id(handle)])
            try:
                handle.version = self._session.get(ref, timeout_s=_CALL_S, what="a submit")
            except RmuxError as error:
                self._lose(batch, handle, error)

    def _load(self, batch: _Batch, handle: RolloutHandle) -> int:
        """Tokens that the worker may still have to sample."""
        return sum(
            batch.sampling.max_tokens
            for index in batch.ledger.unfinished()
            if batch.holder.get(batch.running.get(index, "")) is handle
        )

    def _collect(self, batch: _Batch, on_progress: Progress | None) -> None:
        polls: dict[Any, RolloutHandle] = {}
        while batch.ledger.unfinished():
            for handle in self._working(batch):
                if handle not in polls.values():
                    polls[handle.actor.poll.remote(handle.cursor, _POLL_S)] = handle
            moved = False
            for ref in self._session.ready(list(polls), timeout_s=_POLL_S):
                handle = polls.pop(ref)
                try:
                    cursor, deltas = self._session.get(ref)
                except RmuxError as error:
                    self._lose(batch, handle, error)
                    continue
                handle.cursor = cursor
                for delta in deltas:
                    if batch.holder.get(delta.request_id) is handle:
                        moved |= batch.ledger.record(delta, version=handle.version)
            if moved and on_progress is not None:
                on_progress(_progress(batch.ledger))

    def _working(self, batch: _Batch) -> list[RolloutHandle]:
        """Workers with unfinished parts."""
        parts = (batch.running.get(index, "") for index in batch.ledger.unfinished())
        holders = {id(batch.holder[part]) for part in parts if part in batch.holder}
        return [handle for handle in self._handles if id(handle) in holders]

    def _lose(self, batch: _Batch, handle: RolloutHandle, error: RmuxError) -> None:
        """A worker died: its requests go on elsewhere, from the tokens booked. Raises when none
        is left, and for an error that is not a death."""
        if error.code not in _DEATHS:
            raise error
        handle.dead, handle.awake = error, False
        if not any(other.usable for other in self._handles):
            raise error
        orphans = [
            index
            for index in batch.ledger.unfinished()
            if batch.holder.get(batch.running.get(index, "")) is handle
        ]
        _log.warning("%s; %d requests continue elsewhere", error, len(orphans))
        if orphans:
            self._send(batch, orphans)

    def _abandon(self, batch: _Batch) -> None:
        """Leave nothing running when the call ends early."""
        for handle in self._working(batch):
            ids = [part for part, holder in batch.holder.items() if holder is handle]
            if handle.usable:
                try:
                    self._session.get(handle.actor.abort.remote(ids), timeout_s=_CALL_S)
                except RmuxError as error:
                    _log.warning("could not stop %d requests: %s", len(ids), error)


def _request(part: Part, batch: _Batch) -> Request:
    seed = batch.seeds[part.index]
    if part.start:
        # The generator's state died with the worker; its stream must not be drawn a second time.
        seed = _seed(seed, part.start)
    return Request(
        id=part.id,
        prompt=part.prompt,
        seed=seed,
        sampling=Sampling(
            temperature=batch.sampling.temperature,
            top_p=batch.sampling.top_p,
            max_tokens=part.max_tokens,
            ignore_eos=batch.sampling.ignore_eos,
        ),
    )


def _seed(*parts: int) -> int:
    """The engine takes 63 bits."""
    return xxhash.xxh3_64_intdigest("/".join(map(str, parts)).encode()) >> 1


def _progress(ledger: Ledger) -> Mapping[str, Any]:
    return {
        "responses_done": ledger.num_done,
        "responses": ledger.num_done + len(ledger.unfinished()),
        "tokens": ledger.num_tokens,
    }
