"""How the samples of a train phase are dealt to optimizer steps, ranks and passes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmux.run.driver.engines import Sample

Pass = tuple[Sample, ...]
"""The sequences of one forward and backward pass; empty to keep a rank in step with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """One rank's part of one optimizer step."""

    passes: tuple[Pass, ...]
    tokens: int
    """Sampled tokens of the whole mini-batch, over all ranks: what a loss is divided by."""
    sequences: int
    """Likewise."""


def deal(
    samples: Sequence[Sample], *, mini_batch: int, micro_batch: int, ranks: int
) -> list[tuple[MiniBatch, ...]]:
    """The mini-batches of each rank, in order.

    Samples without a sampled token are left out: they have no gradient. All ranks get the same
    number of passes in each mini-batch, as a collective needs every one of them.
    """
    usable = [sample for sample in samples if sample.response.num_sampled]
    dealt: list[list[MiniBatch]] = [[] for _ in range(ranks)]
    for start in range(0, len(usable), mini_batch):
        chosen = usable[start : start + mini_batch]
        tokens = sum(sample.response.num_sampled for sample in chosen)
        parts = [_part(chosen, rank=rank, ranks=ranks) for rank in range(ranks)]
        num_passes = max(-(-len(part) // micro_batch) for part in parts)
        for rank, part in enumerate(parts):
            passes = tuple(
                tuple(part[index * micro_batch : (index + 1) * micro_batch])
                for index in range(num_passes)
            )
            batch = MiniBatch(passes=passes, tokens=tokens, sequences=len(chosen))
            dealt[rank].append(batch)
    return [tuple(batches) for batches in dealt]


def _part(samples: Sequence[Sample], *, rank: int, ranks: int) -> Sequence[Sample]:
    count = len(samples)
    return samples[rank * count // ranks : (rank + 1) * count // ranks]
