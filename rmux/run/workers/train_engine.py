"""DeepSpeed in one process: scores sequences and takes optimizer steps on its share of samples."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed
from torch import Tensor
from transformers import AutoModelForCausalLM

from rmux.errors import BackendError
from rmux.run.driver.loss import Target, max_gap, mean_denominator, token_logprobs, total_loss
from rmux.run.workers.train_batch import MiniBatch
from rmux.run.workers.train_state import RankState
from rmux.run.workers.train_tensors import Padded, pad
from rmux.run.workers.train_terms import RankReport, RankSettings, Totals
from rmux.run.workers.train_value import (
    VALUES,
    Estimates,
    ReferenceModel,
    attach_value_head,
    estimate,
)

_BETAS = (0.9, 0.95)
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_SHARED_MEMORY_OP = "deepspeed_shm_comm"


class TrainEngine:
    """Every rank makes one; constructing it is a collective."""

    def __init__(self, settings: RankSettings, store: Any) -> None:
        self._settings = settings
        torch.set_num_threads(max(1, len(settings.cores)))
        torch.manual_seed(settings.seed)
        _join(settings, store)
        model = AutoModelForCausalLM.from_pretrained(
            settings.model_path, dtype=torch.float32, local_files_only=True
        )
        model.train()
        if settings.value_head:
            attach_value_head(model)
        self._reference = ReferenceModel(settings.model_path) if settings.train.kl else None
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=_config(settings)
        )
        self.vocabulary = int(model.config.vocab_size)
        self.state = RankState(self._engine, rank=settings.rank, ranks=settings.ranks)

    def train(self, batches: Sequence[MiniBatch], *, gap_bound: float | None) -> RankReport:
        """An optimizer step per mini-batch.

        Before the first, the first pass is compared with what the engine sampled: a gap over
        `gap_bound` on any rank refuses all of it and leaves the weights alone. None compares
        without refusing. A step whose gradient is not finite is not taken, and is the last.
        """
        gap, totals = 0.0, Totals()
        estimates = self._estimates(batches)
        for step, batch in enumerate(batches):
            for index, chosen in enumerate(batch.passes):
                padded = pad(chosen)
                logprobs, values = self._forward(padded.tokens)
                if step == index == 0:
                    gap = self._largest(max_gap(logprobs, padded.sampled, padded.mask))
                    if gap_bound is not None and gap > gap_bound:
                        return RankReport(refused=True, gap=gap)
                known = estimates[step][index] if estimates else None
                target = self._target(padded, known, batch=batch)
                found = total_loss(logprobs, values, target, train=self._settings.train)
                self._descend(found.loss, last=index == len(batch.passes) - 1)
                totals.add(found, tokens=int(padded.mask.sum()))
            # DeepSpeed takes no step along a gradient whose norm, over all ranks, is not finite.
            if not self._engine.was_step_applied():
                return totals.report(gap=gap, is_finite=False)
            totals.end(batch, grad_norm=float(self._engine.get_global_grad_norm()))
        return totals.report(gap=gap)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token after the first, at temperature 1."""
        scored = []
        with torch.no_grad():
            for sequence in sequences:
                tokens = torch.tensor([sequence])
                scored.append(self._logprobs(tokens, temperature=1.0)[0].tolist())
        return scored

    def close(self) -> None:
        torch.distributed.destroy_process_group()

    def _logprobs(self, tokens: Tensor, *, temperature: float) -> Tensor:
        logits = self._engine(input_ids=tokens, use_cache=False).logits
        return token_logprobs(logits[:, :-1], tokens[:, 1:], temperature=temperature)

    def _forward(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the tokens after the first, and the values they were chosen at."""
        found = self._engine(input_ids=tokens, use_cache=False)
        logprobs = token_logprobs(
            found.logits[:, :-1], tokens[:, 1:], temperature=self._settings.temperature
        )
        return logprobs, found[VALUES][:, :-1] if self._settings.value_head else None

    def _estimates(self, batches: Sequence[MiniBatch]) -> list[list[Estimates]]:
        """Empty without a value head."""
        settings = self._settings
        if not settings.value_head:
            return []

        def values_of(tokens: Tensor) -> Tensor:
            found: Tensor = self._engine(input_ids=tokens, use_cache=False)[VALUES]
            return found[:, :-1]

        return estimate(batches, values_of=values_of, train=settings.train, ranks=settings.ranks)

    def _target(self, padded: Padded, known: Estimates | None, *, batch: MiniBatch) -> Target:
        settings, reference = self._settings, None
        if self._reference is not None:
            reference = self._reference.logprobs(padded.tokens, temperature=settings.temperature)
        return Target(
            sampled=padded.sampled,
            mask=padded.mask,
            advantages=padded.advantages if known is None else known.advantages,
            denominator=mean_denominator(
                settings.train.mean, padded.mask, tokens=batch.tokens, sequences=batch.sequences
            ),
            reference=reference,
            before=None if known is None else known.before,
            returns=None if known is None else known.returns,
        )

    def _descend(self, loss: Tensor, *, last: bool) -> None:
        """Backward, and the optimizer's step after the last pass of a mini-batch."""
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over the ranks; the denominators already count all of them.
        self._engine.backward(loss * self._settings.ranks, scale_wrt_gas=False)
        self._engine.step()

    def _largest(self, gap: float) -> float:
        if self._settings.ranks == 1:
            return gap
        shared = torch.tensor([gap])
        torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
        return float(shared[0])


def _join(settings: RankSettings, store: Any) -> None:
    # Without this DeepSpeed compiles a C++ extension at its first start (54 s on one core), leaves
    # a shared-memory segment behind and spins in one collective; gloo does all that is needed.
    deepspeed.ops.__compatible_ops__[_SHARED_MEMORY_OP] = False
    torch.distributed.init_process_group(
        "gloo",
        store=store,
        rank=settings.rank,
        world_size=settings.ranks,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def _config(settings: RankSettings) -> dict[str, Any]:
    train = settings.train
    if train.zero_stage not in (1, 2, 3):
        raise BackendError(
            f"zero_stage is {train.zero_stage}; the built-in trainer exports the weights of "
            "ZeRO stages 1, 2 and 3",
            code="backend.zero",
            hint="write train.zero_stage = 1, 2 or 3",
        )
    return {
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": 1,  # the boundary is set pass by pass
        "gradient_clipping": train.max_grad_norm,
        "zero_optimization": {"stage": train.zero_stage, "overlap_comm": False},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": train.learning_rate,
                "betas": list(_BETAS),
                "weight_decay": 0.0,
                "torch_adam": True,
            },
        },
        "steps_per_print": 10**9,
    }
