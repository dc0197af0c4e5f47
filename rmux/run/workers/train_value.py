"""What stands beside a policy in a training rank: its value head, and a frozen reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from transformers import AutoModelForCausalLM

from rmux.job import TrainSpec
from rmux.run.driver.gae import Moments, normalised, token_advantages
from rmux.run.driver.loss import token_logprobs
from rmux.run.workers.train_batch import MiniBatch
from rmux.run.workers.train_tensors import pad

VALUES = "token_values"
"""Under this name the model's output has the value at each position."""

ValuesOf = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What is expected and what came instead, for each token of one pass."""

    advantages: Tensor
    returns: Tensor
    before: Tensor
    """Values before the first step."""


def attach_value_head(model: Any) -> None:
    """Give the model a linear head on its last hidden state: `value_head`, last of its parameters.

    It starts at zero, so that the first advantages are the rewards, and the policy's own numbers
    stay what they are.
    """
    output = model.get_output_embeddings()
    model.value_head = torch.nn.Linear(output.weight.shape[-1], 1)
    torch.nn.init.zeros_(model.value_head.weight)
    torch.nn.init.zeros_(model.value_head.bias)
    hidden: list[Tensor] = []

    def keep(module: Any, arguments: tuple[Tensor, ...]) -> None:
        hidden[:] = arguments[:1]

    def add(module: Any, arguments: Any, found: Any) -> None:
        found[VALUES] = module.value_head(hidden.pop()).squeeze(-1)

    output.register_forward_pre_hook(keep)
    model.register_forward_hook(add)


def estimate(
    batches: Sequence[MiniBatch], *, values_of: ValuesOf, train: TrainSpec, ranks: int
) -> list[list[Estimates]]:
    """For each pass of each mini-batch, by the weights as they are before the first step.

    `values_of` gives tokens their values. Advantages have mean 0 and deviation 1 over all sampled
    tokens of all ranks: a collective.
    """
    found: list[list[tuple[Tensor, Estimates]]] = []
    moments = Moments(count=0, total=0, squares=0)
    for batch in batches:
        found.append([])
        for chosen in batch.passes:
            padded = pad(chosen)
            with torch.no_grad():
                values = values_of(padded.tokens)
            advantages = token_advantages(
                values,
                rewards=padded.rewards,
                mask=padded.mask,
                gamma=train.gamma,
                lam=train.gae_lambda,
            )
            moments += Moments.of(advantages, padded.mask)
            kept = Estimates(advantages=advantages, returns=advantages + values, before=values)
            found[-1].append((padded.mask, kept))
    everywhere = _over_all_ranks(moments, ranks=ranks)
    return [
        [
            Estimates(
                advantages=normalised(kept.advantages, mask, everywhere),
                returns=kept.returns,
                before=kept.before,
            )
            for mask, kept in passes
        ]
        for passes in found
    ]


class ReferenceModel:
    """A copy of the model as its folder has it, never trained: weight version 0, always."""

    def __init__(self, path: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, local_files_only=True
        )
        self._model.requires_grad_(False)

    def logprobs(self, tokens: Tensor, *, temperature: float) -> Tensor:
        """Of the tokens after the first."""
        with torch.no_grad():
            logits = self._model(input_ids=tokens, use_cache=False).logits
            return token_logprobs(logits[:, :-1], tokens[:, 1:], temperature=temperature)


def _over_all_ranks(moments: Moments, *, ranks: int) -> Moments:
    if ranks == 1:
        return moments
    shared = torch.tensor([moments.count, moments.total, moments.squares], dtype=torch.float64)
    torch.distributed.all_reduce(shared)
    count, total, squares = shared.tolist()
    return Moments(count=count, total=total, squares=squares)
