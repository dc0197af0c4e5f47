"""The sequences of one pass as padded tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rmux.run.workers.train_batch import Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Rows are sequences, padded on the right. Column i of all but `tokens` is of tokens[:, i + 1];
    `mask` marks those that were sampled."""

    tokens: Tensor
    sampled: Tensor
    mask: Tensor
    advantages: Tensor
    """One column."""
    rewards: Tensor
    """One per row."""


def pad(chosen: Pass) -> Padded:
    """One row that is all padding for a pass without sequences."""
    lengths = [len(s.response.prompt_tokens) + len(s.response.tokens) for s in chosen]
    rows, width = max(1, len(chosen)), max(lengths, default=2)
    tokens = torch.zeros(rows, width, dtype=torch.long)
    sampled = torch.zeros(rows, width - 1)
    mask = torch.zeros(rows, width - 1, dtype=torch.bool)
    advantages, rewards = torch.zeros(rows, 1), torch.zeros(rows)
    for row, (sample, length) in enumerate(zip(chosen, lengths, strict=True)):
        response = sample.response
        start = len(response.prompt_tokens) - 1
        tokens[row, :length] = torch.tensor(response.prompt_tokens + response.tokens)
        sampled[row, start : length - 1] = torch.tensor(response.logprobs)
        mask[row, start : length - 1] = torch.tensor(response.mask) if response.mask else True
        advantages[row], rewards[row] = sample.advantage, sample.reward
    return Padded(tokens=tokens, sampled=sampled, mask=mask, advantages=advantages, rewards=rewards)
