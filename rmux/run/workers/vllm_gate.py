"""The sync gate: trainer and engine must give the same numbers before anything is sampled.

Tokens are not compared: a stale tied output head can leave every greedy token as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rmux.errors import WorkerError

BOUND_FP32 = 1e-5
"""Largest |trainer - engine| log-probability that is let through, nats, both in float32.

For a token less likely than 1/e it is so much per nat of its log-probability: rounding grows with
the logits, so the two differ by 2e-5 at -20 where a policy has become sharp. Weights one iteration
old differ by 0.02 in the mean.
"""

MIN_TOKENS = 256
LONG_PROMPT_TOKENS = 129
"""One sequence is longer than one KV block of the CPU engine, so a stale prefix cache shows."""


def check_sequences(sequences: Sequence[Sequence[int]], *, max_model_len: int) -> None:
    """WorkerError when the sequences prove too little for an engine of that sequence length.

    An engine whose sequences never fill a KV block keeps no prefix cache, so there the longest that
    fits will do.
    """
    wanted = min(LONG_PROMPT_TOKENS, max_model_len - 1)
    total = sum(len(sequence) for sequence in sequences)
    longest = max((len(sequence) for sequence in sequences), default=0)
    if total < MIN_TOKENS or longest < wanted:
        raise WorkerError(
            f"the sync gate needs {MIN_TOKENS} tokens with one sequence of {wanted}, got {total} "
            f"with one of {longest}",
            code="sync.gate-weak",
        )


def compare(
    trainer: Sequence[Sequence[float]],
    engine: Sequence[Sequence[float]],
    *,
    version: int,
    where: str,
    bound: float = BOUND_FP32,
) -> float:
    """Largest gap, nats. WorkerError 'sync.gate' when one is over the bound or not a number.

    Each holds one log-probability per token but the first of every sequence.
    """
    if [len(row) for row in trainer] != [len(row) for row in engine]:
        raise WorkerError(
            f"the sync gate got {[len(row) for row in engine]} log-probabilities from {where}, "
            f"{[len(row) for row in trainer]} from the trainer",
            code="sync.gate",
        )
    pairs = [
        pair
        for theirs, ours in zip(trainer, engine, strict=True)
        for pair in zip(theirs, ours, strict=True)
    ]
    gaps = [abs(one - other) for one, other in pairs]
    gap = math.inf if any(math.isnan(value) for value in gaps) else max(gaps, default=0.0)
    within = all(abs(one - other) <= bound * max(1.0, abs(one)) for one, other in pairs)
    if not within or math.isinf(gap):
        raise WorkerError(
            f"weight version {version} at {where} is not the trainer's: log-probabilities differ "
            f"by up to {gap:.3g}, {bound:g} is allowed, times their size where that is over 1",
            code="sync.gate",
            details={"gap": gap, "bound": bound, "version": version, "device": where},
        )
    return gap
