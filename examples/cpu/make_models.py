"""Make the models of the example jobs: small, random weights, 64 characters as tokens.

    python examples/cpu/make_models.py

Writes models/copy and models/sort beside this file (3.6 MB each), unless they are there already.
Nothing is downloaded; the weights depend on the seed alone.
"""

import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rmux.run.driver.tokenizer import CharTokenizer

FOLDER = Path(__file__).parent / "models"
SEEDS = {"copy": 11, "sort": 12}


def make(folder: Path, *, seed: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = CharTokenizer()
    config = Qwen3Config(
        vocab_size=tokenizer.num_tokens,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        # No token ends a response: each goes on to the token limit, the worst case of the plan.
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
    for name, seed in SEEDS.items():
        folder = FOLDER / name
        if (folder / "model.safetensors").exists():
            print(f"{folder}: there already")
        else:
            make(folder, seed=seed)
            print(f"{folder}: made")


if __name__ == "__main__":
    main()
