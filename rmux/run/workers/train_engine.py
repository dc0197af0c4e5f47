"""DeepSpeed in one process: scores sequences and takes optimizer steps on its share of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed
from torch import Tensor
from transformers import AutoModelForCausalLM

from rmux.errors import BackendError
from rmux.run.driver.loss import max_gap, policy_loss, token_logprobs
from rmux.run.workers.train_batch import MiniBatch, Pass
from rmux.run.workers.train_state import RankState
from rmux.run.workers.train_terms import RankReport, RankSettings

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
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=_config(settings)
        )
        self.vocabulary = int(model.config.vocab_size)
        self.state = RankState(self._engine, rank=settings.rank, ranks=settings.ranks)

    def train(self, batches: Sequence[MiniBatch], *, gap_bound: float | None) -> RankReport:
        """An optimizer step per mini-batch.

        Before the first, the first pass is compared with what the engine sampled: a gap over
        `gap_bound` on any rank refuses all of it and leaves the weights alone. None compares
        without refusing.
        """
        gap, totals, tokens = 0.0, _Totals(), 0
        for step, batch in enumerate(batches):
            for index, chosen in enumerate(batch.passes):
                padded = _pad(chosen)
                logprobs = self._logprobs(padded.tokens, temperature=self._settings.temperature)
                if step == index == 0:
                    gap = self._largest(max_gap(logprobs, padded.sampled, padded.mask))
                    if gap_bound is not None and gap > gap_bound:
                        return RankReport(refused=True, gap=gap)
                last = index == len(batch.passes) - 1
                self._pass(logprobs, padded, batch=batch, last=last, totals=totals)
                tokens += int(padded.mask.sum())
            totals.grad_norm += float(self._engine.get_global_grad_norm())
        return RankReport(
            refused=False,
            gap=gap,
            steps=len(batches),
            tokens=tokens,
            loss=totals.loss,
            grad_norm=totals.grad_norm,
            clipped_tokens=totals.clipped_tokens,
            divergence=totals.divergence,
        )

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

    def _pass(
        self, logprobs: Tensor, padded: _Padded, *, batch: MiniBatch, last: bool, totals: _Totals
    ) -> None:
        train = self._settings.train
        found = policy_loss(
            logprobs,
            sampled=padded.sampled,
            advantages=padded.advantages,
            mask=padded.mask,
            clip_low=train.clip_low,
            clip_high=train.clip_high,
            denominator=batch.denominator,
        )
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over the ranks; the denominator already counts all of them.
        self._engine.backward(found.loss * self._settings.ranks, scale_wrt_gas=False)
        self._engine.step()
        totals.loss += float(found.loss.detach())
        totals.clipped_tokens += float(found.clipped_tokens)
        totals.divergence += float(found.divergence)

    def _largest(self, gap: float) -> float:
        if self._settings.ranks == 1:
            return gap
        shared = torch.tensor([gap])
        torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
        return float(shared[0])


@dataclass(slots=True)
class _Totals:
    loss: float = 0.0
    grad_norm: float = 0.0
    clipped_tokens: float = 0.0
    divergence: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Padded:
    """Sequences padded on the right; `mask` marks the response tokens among tokens[:, 1:]."""

    tokens: Tensor
    sampled: Tensor
    advantages: Tensor
    mask: Tensor


def _pad(chosen: Pass) -> _Padded:
    lengths = [len(s.response.prompt_tokens) + len(s.response.tokens) for s in chosen]
    rows, width = max(1, len(chosen)), max(lengths, default=2)
    tokens = torch.zeros(rows, width, dtype=torch.long)
    sampled = torch.zeros(rows, width - 1)
    mask = torch.zeros(rows, width - 1, dtype=torch.bool)
    advantages = torch.zeros(rows)
    for row, (sample, length) in enumerate(zip(chosen, lengths, strict=True)):
        response = sample.response
        start = len(response.prompt_tokens) - 1
        tokens[row, :length] = torch.tensor(response.prompt_tokens + response.tokens)
        sampled[row, start : length - 1] = torch.tensor(response.logprobs)
        mask[row, start : length - 1] = True
        advantages[row] = sample.advantage
    return _Padded(tokens=tokens, sampled=sampled, advantages=advantages, mask=mask)


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
    if train.zero_stage not in (1, 2):
        raise BackendError(
            f"zero_stage is {train.zero_stage}; the built-in trainer exports the weights of "
            "ZeRO stages 1 and 2",
            code="backend.zero",
            hint="write train.zero_stage = 1 or 2",
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
