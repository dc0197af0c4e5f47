"""GRPO's loss on one micro-batch: pure torch, the same number however the batch is split."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """`loss` is this micro-batch's share of the mini-batch loss; the others are token sums."""

    loss: Tensor
    clipped_tokens: Tensor
    divergence: Tensor
    """Sum of the k3 estimate of KL(old ‖ new), nats."""


def token_logprobs(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of `tokens[..., i]` under `logits[..., i, :]` sampled at `temperature`."""
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled, dim=-1)


def policy_loss(
    logprobs: Tensor,
    *,
    sampled: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    denominator: float,
) -> PolicyLoss:
    """Clipped policy gradient over [sequences, tokens]; `advantages` is one per sequence.

    `denominator` is the number of response tokens of the whole mini-batch, over all micro-batches
    and ranks. So the sum of the shares is the token mean of the mini-batch, and its gradient does
    not depend on how the sequences were dealt out. Ratios are clipped to 1 - clip_low … 1 +
    clip_high.
    """
    weight = mask.to(logprobs.dtype)
    # Outside the mask the ratio must be exactly 1: padding could overflow exp and give 0 * inf.
    log_ratio = (logprobs - sampled).masked_fill(~mask, 0.0)
    ratio = log_ratio.exp()
    advantage = advantages.unsqueeze(-1)
    plain = ratio * advantage
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage
    loss = -(torch.minimum(plain, clipped) * weight).sum() / denominator
    with torch.no_grad():
        divergence = ((ratio - 1.0 - log_ratio) * weight).sum()
        clipped_tokens = ((clipped < plain) * weight).sum()
    return PolicyLoss(loss=loss, clipped_tokens=clipped_tokens, divergence=divergence)


def max_gap(logprobs: Tensor, sampled: Tensor, mask: Tensor) -> float:
    """Largest |trainer - sampled| log-probability inside the mask, nats; NaN counts as infinite."""
    gap = (logprobs.detach() - sampled).abs().nan_to_num(nan=float("inf"))
    return float(gap.masked_fill(~mask, 0.0).max()) if mask.any() else 0.0
