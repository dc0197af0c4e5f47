"""A request's random numbers, taken from one engine and gone on with in another.

vLLM has no interface for this: everything here reaches into version 1 of its model runner, which
keeps a torch generator per seeded request. So an engine is asked whether it works, by the very
thing that is wanted of it, before anything relies on it; where it does not, the driver is told and
says so of each response that has a seam.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

_log = logging.getLogger(__name__)

_PROBE = "probe"
_PROBE_TOKENS = 9
_PROBE_CUT = 3
"""Not where the engine hands tokens out, so that some are held back at the cut."""
_PROBE_SEED = 12345


class GeneratorStates:
    """Of one in-process engine, by the engine's own request ids; on its thread only."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._given: dict[str, Any] = {}
        """For requests that the runner has not admitted yet."""
        self._runner: Any = None

    def works(self, stops: Sequence[int]) -> bool:
        """Whether a seeded request that is stopped and goes on as prompt and tokens so far samples
        what it would have sampled: tried, in about 20 steps, on an idle engine.

        What the engine raises at a request of which nothing private is wanted is raised: no other
        request would fare better.
        """
        try:
            whole = self._sample([1, 1], _PROBE_TOKENS, stops)[0]
            return self._carries(whole, stops)
        finally:
            self._given.clear()
            self._clear()

    def _carries(self, whole: list[int], stops: Sequence[int]) -> bool:
        try:
            self._hook()
            head, state = self._sample([1, 1], _PROBE_TOKENS, stops, cut=_PROBE_CUT)
            rest = len(whole) - len(head)
            tail = self._sample([1, 1, *head], rest, stops, state=state)[0]
            unmoved = self._sample([1, 1, *head], rest, stops)[0]
        except Exception as error:  # noqa: BLE001 - whatever a private interface may raise
            _log.warning("random numbers cannot be carried between engines: %r", error)
            return False
        # That it matters shows that the test can fail.
        works = len(head) >= _PROBE_CUT and head + tail == whole != head + unmoved
        if not works:
            _log.warning("random numbers cannot be carried between engines: other tokens came")
        return works

    def _clear(self) -> None:
        """Leave no request behind, which would keep its part of the cache. Errors are told only:
        what came before them is the cause."""
        try:
            self._engine.abort_request([_PROBE])
            self._engine.reset_prefix_cache()
        except Exception as error:  # noqa: BLE001 - an engine that failed already
            _log.warning("a probe could not be taken back: %r", error)

    def give(self, internal: str, state: bytes) -> None:
        """The request's random numbers go on from `state` once the runner admits it."""
        import torch

        self._given[internal] = torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def take(self, internal: str) -> bytes | None:
        """The state after the last sampled token; None for a request that has none (yet)."""
        state = self._given.get(internal)
        if state is None:
            request = self._runner.requests.get(internal)
            generator = None if request is None else request.generator
            state = None if generator is None else generator.get_state()
        return None if state is None else bytes(state.numpy().tobytes())

    def held_back(self, internal: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Tokens that were sampled and not handed out yet, with their log-probabilities."""
        request = self._engine.output_processor.request_states[internal]
        tokens = tuple(request.detokenizer.output_token_ids[request.sent_tokens_offset :])
        if not tokens:
            return (), ()
        logprobs = request.logprobs_processor.logprobs[-len(tokens) :]
        return tokens, sampled_logprobs(logprobs, len(tokens))

    def forget(self, internal: str) -> None:
        self._given.pop(internal, None)

    def _hook(self) -> None:
        """Between admission, which seeds a new generator, and sampling."""
        runner = self._engine.model_executor.driver_worker.worker.model_runner
        update = runner._update_states

        def update_and_set(*args: Any, **kwargs: Any) -> Any:
            result = update(*args, **kwargs)
            for internal in [each for each in self._given if each in runner.requests]:
                runner.requests[internal].generator.set_state(self._given.pop(internal))
            return result

        runner._update_states = update_and_set
        self._runner = runner

    def _sample(
        self,
        prompt: list[int],
        count: int,
        stops: Sequence[int],
        *,
        cut: int = 0,
        state: bytes | None = None,
    ) -> tuple[list[int], bytes | None]:
        """The tokens of one seeded request; with `cut` it is stopped after that many."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            # As even as the engine allows: other random numbers are to give other tokens.
            temperature=2.0,
            max_tokens=count,
            min_tokens=count,
            seed=_PROBE_SEED,
            logprobs=0,
            flat_logprobs=True,
            stop_token_ids=list(stops),
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        internal = self._engine.add_request(_PROBE, {"prompt_token_ids": prompt}, params)
        if state is not None:
            self.give(internal, state)
        tokens: list[int] = []
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens.extend(output.outputs[0].token_ids)
            if cut and len(tokens) < count:
                held, _ = self.held_back(internal)
                if len(tokens) + len(held) >= cut:
                    found = self.take(internal)
                    self._engine.abort_request([_PROBE])
                    return [*tokens, *held], found
        return tokens, None


def sampled_logprobs(logprobs: Any, count: int) -> tuple[float, ...]:
    """The sampled token's log-probability stands first at each position."""
    if count == 0:
        return ()
    return tuple(logprobs.logprobs[start] for start in logprobs.start_indices)
