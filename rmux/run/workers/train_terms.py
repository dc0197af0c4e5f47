"""What a driver and its training ranks say to each other; light to import."""

from __future__ import annotations

from dataclasses import dataclass

from rmux.job import TrainSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    model_path: str
    rank: int
    ranks: int
    cores: tuple[int, ...]
    address: str
    """Where the ranks meet: an address of the first rank's node."""
    seed: int
    train: TrainSpec
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Sums over this rank's tokens; `gap` is the largest over all ranks."""

    refused: bool
    gap: float
    steps: int = 0
    tokens: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    clipped_tokens: float = 0.0
    divergence: float = 0.0
