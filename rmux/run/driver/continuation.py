"""How the rest of a response is asked for on another worker, and what it is then worth.

The prompt and the tokens so far become the new prompt, and the budget and `min_tokens` shrink by
those tokens. Greedy sampling and the repetition penalty (it counts prompt and response alike) go on
exactly. Seeded sampling does where the state of the request's random numbers is carried along;
without it the rest is drawn from the same distribution, with other numbers. A presence or frequency
penalty counts the response only, and would take the prefix for prompt; a stop string may lie across
the seam, and the engines have no tokenizer to see one. Those are refused before anything starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from rmux.errors import UserError
from rmux.run.driver.engines import Exactness, Sampling
from rmux.run.driver.ledger import Part
from rmux.run.workers.vllm_engine import Request, check_sampling

_NAMED = 5
"""Wrong prompts that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The state of a request's random numbers after so many tokens of its response."""

    tokens: int
    state: bytes


def check_continuable(sampling: Sampling) -> None:
    """UserError for sampling that could not go on faithfully on another worker."""
    for name, value in (
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ):
        if value != 0.0:
            raise UserError(
                f"{name} = {value:g} is not supported: it counts the response so far, which a "
                "worker that continues it would take for its prompt",
                code="usage.sampling",
                hint=f"use {name} = 0, or repetition_penalty, which counts both alike",
            )
    if sampling.stop:
        raise UserError(
            f"stop = {list(sampling.stop)} is not supported: the engines have no tokenizer to see "
            "a text by, and one that lies across two parts would be missed",
            code="usage.sampling",
            hint="end the response by its end-of-sequence token, or cut it in the reward",
        )
    check_sampling(sampling)


def check_prompts(prompts: Sequence[Sequence[int]], *, max_tokens: int, max_model_len: int) -> None:
    """UserError that names every prompt that is empty or leaves no room for the response."""
    _check_lengths(
        {at: len(prompt) for at, prompt in enumerate(prompts)},
        longest=max_model_len - max_tokens,
        max_tokens=max_tokens,
    )


def check_prompt(prompt: Sequence[int], *, key: int, max_tokens: int, max_model_len: int) -> None:
    """The same for one, named by its key."""
    _check_lengths({key: len(prompt)}, longest=max_model_len - max_tokens, max_tokens=max_tokens)


def _check_lengths(lengths: Mapping[int, int], *, longest: int, max_tokens: int) -> None:
    wrong = {at: length for at, length in lengths.items() if not 1 <= length <= longest}
    if not wrong:
        return
    named = [f"prompt {at} has {length} tokens" for at, length in wrong.items()]
    more = f" and {len(named) - _NAMED} more are wrong" if len(named) > _NAMED else ""
    raise UserError(
        f"{', '.join(named[:_NAMED])}{more}; with a response of up to {max_tokens} each must have "
        f"1 to {longest}",
        code="usage.prompt",
        hint="raise rollout.max_prompt_tokens or rollout.max_tokens in the spec",
        details={"prompts": list(wrong)},
    )


def request_for(
    part: Part, *, sampling: Sampling, seed: int, carried: Carried | None = None
) -> Request:
    """The rest of a response; random numbers go on from `carried` if it is of that very length."""
    return Request(
        id=part.id,
        prompt=part.prompt,
        # Without its state a stream of random numbers must not be drawn a second time.
        seed=derived_seed(seed, part.start) if part.start else seed,
        generator_state=state_at(carried, part.start),
        sampling=dataclasses.replace(
            sampling,
            max_tokens=part.max_tokens,
            min_tokens=max(0, sampling.min_tokens - part.start),
        ),
    )


def state_at(carried: Carried | None, tokens: int) -> bytes | None:
    return carried.state if carried is not None and carried.tokens == tokens else None


def exactness_of(part: Part, *, sampling: Sampling, state_taken: bool) -> Exactness:
    """What the seam before this part is worth."""
    if part.start == 0 or sampling.temperature == 0.0 or state_taken:
        return Exactness.EXACT
    return Exactness.SAME_DISTRIBUTION


def derived_seed(*parts: int) -> int:
    """The engine takes 63 bits."""
    return xxhash.xxh3_64_intdigest("/".join(map(str, parts)).encode()) >> 1
