"""The losses of all recipes on one micro-batch: pure torch, the same however the batch is split.

Each is a share of a mean over the whole mini-batch: a sum here, over a denominator that counts what
all micro-batches and ranks hold. So the shares add up to the mean, and its gradient does not depend
on how the sequences were dealt out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rmux.job import TrainSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """`loss` is this micro-batch's share of the mini-batch loss; the others are token sums."""

    loss: Tensor
    clipped_tokens: Tensor
    divergence: Tensor
    """Sum of the k3 estimate of KL(old ‖ new), nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a micro-batch is trained towards; tensors are [sequences, tokens] or broadcast to it."""

    sampled: Tensor
    """Log-probabilities when sampled."""
    mask: Tensor
    advantages: Tensor
    denominator: Tensor
    """See `mean_denominator`."""
    reference: Tensor | None = None
    """Log-probabilities by the reference model."""
    before: Tensor | None = None
    """Values before the first step; with `returns`, of a model with a value head."""
    returns: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """`loss`, `value` and `reference` are shares of a mean over the mini-batch."""

    loss: Tensor
    policy: PolicyLoss
    value: Tensor | None = None
    reference: Tensor | None = None


def total_loss(
    logprobs: Tensor, values: Tensor | None, target: Target, *, train: TrainSpec
) -> Loss:
    """The policy's loss, plus the value head's and the divergence from the reference, if any."""
    mask, denominator = target.mask, target.denominator
    policy = policy_loss(
        logprobs,
        sampled=target.sampled,
        advantages=target.advantages,
        mask=mask,
        clip_low=train.clip_low,
        clip_high=train.clip_high,
        denominator=denominator,
    )
    total, value, apart = policy.loss, None, None
    if values is not None and target.before is not None and target.returns is not None:
        value = value_loss(
            values,
            before=target.before,
            returns=target.returns,
            mask=mask,
            clip=train.value_clip,
            denominator=denominator,
        )
        total = total + train.value_weight * value
    if target.reference is not None:
        apart = reference_loss(
            logprobs, reference=target.reference, mask=mask, denominator=denominator
        )
        total = total + train.kl * apart
    return Loss(loss=total, policy=policy, value=value, reference=apart)


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
    denominator: Tensor | float,
) -> PolicyLoss:
    """Clipped policy gradient over [sequences, tokens].

    `advantages` and `denominator` are given for each token, or broadcast to that: see
    `mean_denominator`. Ratios are clipped to 1 - clip_low … 1 + clip_high: PPO's objective (arXiv
    1707.06347, eq. 7) with the two bounds of DAPO (arXiv 2503.14476, eq. 10).
    """
    weight = mask.to(logprobs.dtype) / denominator
    # Outside the mask the ratio must be exactly 1: padding could overflow exp and give 0 * inf.
    log_ratio = (logprobs - sampled).masked_fill(~mask, 0.0)
    ratio = log_ratio.exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    loss = -(torch.minimum(plain, clipped) * weight).sum()
    with torch.no_grad():
        divergence = ((ratio - 1.0 - log_ratio) * mask).sum()
        clipped_tokens = ((clipped < plain) & mask).sum()
    return PolicyLoss(loss=loss, clipped_tokens=clipped_tokens, divergence=divergence)


def value_loss(
    values: Tensor,
    *,
    before: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float,
    denominator: Tensor | float,
) -> Tensor:
    """Half the squared error of `values` over [sequences, tokens], clipped around `before`.

    The larger of the plain error and that of a value moved by `clip` at most: a value that already
    moved so far in this phase is not pulled further (arXiv 2005.12729, section 3).
    """
    weight = mask.to(values.dtype) / denominator
    values, before, returns = (found.masked_fill(~mask, 0.0) for found in (values, before, returns))
    moved = before + (values - before).clamp(-clip, clip)
    error = torch.maximum((values - returns) ** 2, (moved - returns) ** 2)
    return 0.5 * (error * weight).sum()


def reference_loss(
    logprobs: Tensor, *, reference: Tensor, mask: Tensor, denominator: Tensor | float
) -> Tensor:
    """Mean of the k3 estimate of KL(policy ‖ reference), nats.

    exp(d) - d - 1 with d = log reference - log policy: never negative, and without bias for samples
    of the policy (joschu.net/blog/kl-approx.html; GRPO's, arXiv 2402.03300, eq. 4).
    """
    weight = mask.to(logprobs.dtype) / denominator
    apart = (reference - logprobs).masked_fill(~mask, 0.0)
    return ((apart.exp() - apart - 1.0) * weight).sum()


def mean_denominator(mean: str, mask: Tensor, *, tokens: int, sequences: int) -> Tensor:
    """What to divide each token's term by, one row per sequence; counts are of the mini-batch.

    'token': all its tokens alike (DAPO, arXiv 2503.14476, eq. 8). 'sequence': the mean over the
    sequences of the mean over each one's tokens (GRPO, arXiv 2402.03300, eq. 3).
    """
    if mean == "token":
        return torch.full((mask.shape[0], 1), float(tokens))
    return mask.sum(-1, keepdim=True).clamp(min=1).float() * sequences


def max_gap(logprobs: Tensor, sampled: Tensor, mask: Tensor) -> float:
    """Largest |trainer - sampled| log-probability inside the mask, nats; NaN counts as infinite."""
    gap = (logprobs.detach() - sampled).abs().nan_to_num(nan=float("inf"))
    return float(gap.masked_fill(~mask, 0.0).max()) if mask.any() else 0.0
