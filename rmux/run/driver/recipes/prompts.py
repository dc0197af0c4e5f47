"""Prompts of an iteration: drawn from the user's function, encoded, each with seeds of its own.

Everything random comes from (seed, iteration, round), so a job that is resumed, wherever, goes on
with the very prompts and samples it would have had.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rmux.errors import SpecError, UserError
from rmux.job import JobSpec
from rmux.run.driver.tokenizer import Tokenizer

PromptSource = Callable[[random.Random, int], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One entry per response to be sampled, those of one prompt side by side."""

    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...]
    resets: tuple[int, ...] = ()
    """Seeds of the environments, whose first observations are the prompts; empty without."""

    def first(self, count: int) -> Drawn:
        """The first `count` responses."""
        return Drawn(
            texts=self.texts[:count],
            tokens=self.tokens[:count],
            seeds=self.seeds[:count],
            resets=self.resets[:count],
        )


def load_prompts(module: str) -> PromptSource:
    """The function that 'file.py:name' names. SpecError when there is none."""
    path, _, name = module.rpartition(":")
    found = importlib.util.spec_from_file_location("rmux_task", path)
    if found is None or found.loader is None or not Path(path).is_file():
        raise SpecError(f"task.prompts: no Python file {path}")
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    if not callable(prompts_of := getattr(loaded, name, None)):
        raise SpecError(f"task.prompts: no function {name!r} in {path}")
    return cast("PromptSource", prompts_of)


def draw(
    spec: JobSpec,
    prompts_of: PromptSource,
    tokenizer: Tokenizer,
    *,
    iteration: int,
    refill: int = 0,
) -> Drawn:
    """`rollout.prompts` prompts, each `samples_per_prompt` times; `refill` counts further rounds.

    UserError for the wrong number of prompts, for one that is no text or has no tokens, and for one
    over `rollout.max_prompt_tokens`.
    """
    rollout = spec.rollout
    suffix = f"/{refill}" if refill else ""
    rng = random.Random(f"{spec.seed}/{iteration}/prompts{suffix}")
    drawn = _texts(prompts_of(rng, rollout.prompts), wanted=rollout.prompts)
    texts = tuple(text for text in drawn for _ in range(rollout.samples_per_prompt))
    seeds = random.Random(f"{spec.seed}/{iteration}/samples{suffix}")
    return Drawn(
        texts=texts,
        tokens=_encode(spec, tokenizer, texts),
        seeds=tuple(seeds.getrandbits(31) for _ in texts),
    )


def _texts(found: object, *, wanted: int) -> list[str]:
    """UserError for what is not exactly so many texts."""
    asked = f"the prompt source was asked for {wanted} texts and gave"
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise UserError(f"{asked} {reprlib.repr(found)}", code="task.prompt")
    drawn = list(itertools.islice(found, wanted + 1))  # a source may go on for ever
    if len(drawn) != wanted:
        number = f"more than {wanted}" if len(drawn) > wanted else str(len(drawn))
        raise UserError(f"{asked} {number}", code="task.prompt")
    if wrong := [text for text in drawn if not isinstance(text, str)]:
        raise UserError(f"{asked} {reprlib.repr(wrong[0])} among them", code="task.prompt")
    return drawn


def _encode(
    spec: JobSpec, tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    known = {text: tokenizer.encode(text) for text in dict.fromkeys(texts)}
    limit = spec.rollout.max_prompt_tokens
    for text, tokens in known.items():
        if not 1 <= len(tokens) <= limit:
            raise UserError(
                f"a prompt has {len(tokens)} tokens, rollout.max_prompt_tokens is {limit}"
                if tokens
                else "a prompt has no tokens; the prompt source must give texts that have some",
                code="task.prompt",
                details={"prompt": text[:200]},
            )
    return tuple(known[text] for text in texts)
