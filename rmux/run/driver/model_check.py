"""Rollout engine and trainer must hold the same kind of model before weights go between them."""

from __future__ import annotations

from rmux.errors import WorkerError
from rmux.run.workers.vllm_engine import ModelFacts


def check_same_model(engine: ModelFacts, trainer: ModelFacts, *, where: str) -> None:
    """WorkerError 'model.vocabulary' or 'model.dtype' when tokens or numbers would not be the
    trainer's."""
    if engine.vocabulary != trainer.vocabulary:
        raise WorkerError(
            f"the engine at {where} has a vocabulary of {engine.vocabulary} tokens, the trainer "
            f"one of {trainer.vocabulary}",
            code="model.vocabulary",
            hint="the model's config.json and its weights must be of one and the same model",
            details={"engine": engine.vocabulary, "trainer": trainer.vocabulary},
        )
    if engine.dtype != trainer.dtype:
        raise WorkerError(
            f"the engine at {where} computes in {engine.dtype}, the trainer sends {trainer.dtype}: "
            "their log-probabilities could not be compared",
            code="model.dtype",
            hint=f'write rollout.dtype = "{trainer.dtype}"',
            details={"engine": engine.dtype, "trainer": trainer.dtype},
        )
