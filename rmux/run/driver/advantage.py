"""Advantages of GRPO: a response against the other responses to the same prompt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""Added to the deviation, so that a group of equal rewards gets advantage 0, not 0 ÷ 0."""


def group_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """(reward - mean) ÷ (deviation + EPSILON) of one prompt's responses.

    None is a response without a reward: it stays None and counts for nobody else's mean.
    """
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [None] * len(rewards)
    mean = statistics.fmean(known)
    scale = statistics.pstdev(known, mean) + EPSILON
    return [None if reward is None else (reward - mean) / scale for reward in rewards]


def grouped_advantages(rewards: Sequence[float | None], *, width: int) -> list[float | None]:
    """`group_advantages` of each run of `width` rewards, side by side."""
    return [
        advantage
        for start in range(0, len(rewards), width)
        for advantage in group_advantages(rewards[start : start + width])
    ]
