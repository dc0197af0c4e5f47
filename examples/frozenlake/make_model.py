"""Make the model of this example: small, random weights, 20 characters as tokens.

    python examples/frozenlake/make_model.py

Writes models/lake beside this file (0.5 MB), unless it is there already. Nothing is downloaded; the
weights depend on the seed alone.
"""

import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rmux.run.driver.tokenizer import CharTokenizer

FOLDER = Path(__file__).parent / "models"
SYMBOLS = "abcdefghijklmnop<v>^"
"""A letter per field, and the actions."""


def make(folder: Path, *, seed: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = CharTokenizer(SYMBOLS)
    config = Qwen3Config(
        vocab_size=tokenizer.num_tokens,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    Qwen3ForCausalLM(config).save_pretrained(scratch)
    tokenizer.save(scratch)
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    folder = FOLDER / "lake"
    if (folder / "model.safetensors").exists():
        print(f"{folder}: there already")
    else:
        make(folder, seed=13)
        print(f"{folder}: made")


if __name__ == "__main__":
    main()
