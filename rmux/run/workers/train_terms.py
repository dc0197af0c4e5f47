"""What a driver and its training ranks say to each other; light to import."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rmux.job import TrainSpec

if TYPE_CHECKING:
    from rmux.run.driver.loss import Loss
    from rmux.run.workers.train_batch import MiniBatch


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
    value_head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Sums over this rank's tokens and over the steps; `gap` is the largest over all ranks."""

    refused: bool
    gap: float
    is_finite: bool = True
    """False when the gradient of step `steps`, counted from 0, was not: it was not taken."""
    steps: int = 0
    step_tokens: int = 0
    """What the losses were divided by, sampled tokens, over all ranks."""
    step_sequences: int = 0
    tokens: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    clipped_tokens: float = 0.0
    divergence: float = 0.0
    value_loss: float = 0.0
    reference: float = 0.0
    """Divergence from the reference model, nats: shares of a mean for each step."""


@dataclass(slots=True)
class Totals:
    """What a rank adds up while it trains."""

    steps: int = 0
    step_tokens: int = 0
    step_sequences: int = 0
    tokens: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    clipped_tokens: float = 0.0
    divergence: float = 0.0
    value_loss: float = 0.0
    reference: float = 0.0

    def add(self, found: Loss, *, tokens: int) -> None:
        """A pass."""
        self.tokens += tokens
        self.loss += float(found.loss.detach())
        self.clipped_tokens += float(found.policy.clipped_tokens)
        self.divergence += float(found.policy.divergence)
        self.value_loss += 0.0 if found.value is None else float(found.value.detach())
        self.reference += 0.0 if found.reference is None else float(found.reference.detach())

    def end(self, batch: MiniBatch, *, grad_norm: float) -> None:
        """A step that was taken."""
        self.steps += 1
        self.step_tokens += batch.tokens
        self.step_sequences += batch.sequences
        self.grad_norm += grad_norm

    def report(self, *, gap: float, is_finite: bool = True) -> RankReport:
        return RankReport(refused=False, gap=gap, is_finite=is_finite, **asdict(self))
