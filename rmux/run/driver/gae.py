"""Advantages token by token, from the values that a head of the model gave: pure torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-8
"""Added to the deviation that advantages are divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Sums over tokens, in float64 so that their order changes nothing that counts."""

    count: float
    total: float
    squares: float

    @staticmethod
    def of(values: Tensor, mask: Tensor) -> Moments:
        inside = values[mask].double()
        return Moments(
            count=float(mask.sum()), total=float(inside.sum()), squares=float((inside**2).sum())
        )

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            count=self.count + other.count,
            total=self.total + other.total,
            squares=self.squares + other.squares,
        )

    @property
    def mean(self) -> float:
        return self.total / max(1.0, self.count)

    @property
    def deviation(self) -> float:
        return math.sqrt(max(0.0, self.squares / max(1.0, self.count) - self.mean**2))


def token_advantages(
    values: Tensor, *, rewards: Tensor, mask: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalized advantages over [sequences, tokens]; `rewards` is one per sequence.

    A_t = d_t + gamma lam A_next, d_t = r_t + gamma V_next - V_t (arXiv 1506.02438, eq. 11 to 16),
    where next is the next sampled token: what an environment said in between was no choice. The
    reward comes with the last sampled token, after which nothing is expected, also where a response
    was cut at the token limit. 0 outside the mask.
    """
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(rewards)
    carried = torch.zeros_like(rewards)
    reward = rewards
    for at in range(values.shape[1] - 1, -1, -1):
        here, value = mask[:, at], values[:, at]
        advantage = reward + gamma * next_value - value + gamma * lam * carried
        carried = torch.where(here, advantage, carried)
        next_value = torch.where(here, value, next_value)
        reward = torch.where(here, 0.0, reward)
        advantages[:, at] = torch.where(here, advantage, 0.0)
    return advantages


def normalised(advantages: Tensor, mask: Tensor, moments: Moments) -> Tensor:
    """Advantages with the mean 0 and deviation 1 of all tokens that `moments` counts."""
    scaled = (advantages - moments.mean) / (moments.deviation + EPSILON)
    return scaled.masked_fill(~mask, 0.0)
