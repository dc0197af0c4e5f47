"""A model that loads, and that the engine cannot compute."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def narrow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 16, which vLLM's attention on CPUs does not have."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=5,
    )
    folder = tmp_path_factory.mktemp("narrow")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def test_what_the_engine_said_is_told_and_not_what_came_of_it(
    start_rollout: Callable[..., Any], narrow_model: Path
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the engine raises
        start_rollout(model=narrow_model).wake()
    assert "prefix cache" not in str(caught.value)
    assert "head" in str(caught.value).lower()
