"""Text to tokens and back, once each way: what was sampled is trained on, never tokenized again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rmux.errors import UserError

FILE_NAME = "char_tokenizer.json"
SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
"""The 64 symbols of the example models."""


class Tokenizer(Protocol):
    @property
    def num_tokens(self) -> int: ...

    def encode(self, text: str) -> tuple[int, ...]:
        """UserError for text that has no tokens."""

    def decode(self, tokens: Sequence[int]) -> str: ...


class CharTokenizer:
    """One token per character; kept beside the model as a small JSON file."""

    def __init__(self, symbols: str = SYMBOLS) -> None:
        if not symbols or len(set(symbols)) != len(symbols):
            raise UserError("a character tokenizer needs symbols, each of them once")
        self.symbols = symbols
        self._tokens = {symbol: token for token, symbol in enumerate(symbols)}

    @property
    def num_tokens(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self._tokens[symbol] for symbol in text)
        except KeyError as error:
            raise UserError(
                f"{error.args[0]!r} is not among the {self.num_tokens} symbols of the tokenizer",
                code="task.prompt",
                details={"text": text},
            ) from error

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.symbols[token] for token in tokens)

    def save(self, folder: Path) -> None:
        document = {"kind": "char", "symbols": self.symbols}
        (folder / FILE_NAME).write_text(json.dumps(document) + "\n")


class _PretrainedTokenizer:
    """A Hugging Face tokenizer, without the special tokens of a chat."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def num_tokens(self) -> int:
        return len(self._inner)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._inner.decode(list(tokens), skip_special_tokens=True))


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """The model's tokenizer: its character table, else its Hugging Face files; no download.

    UserError when the folder holds neither, one that cannot be read, or one that does not fit the
    model's vocabulary.
    """
    if (chars := load_characters(folder)) is not None:
        return chars
    from transformers import AutoTokenizer

    try:
        found = _PretrainedTokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"no tokenizer in {folder}: {error}",
            hint=f"put {FILE_NAME} or the tokenizer's own files beside the weights",
        ) from error
    # Vocabularies are filled up to round sizes; such tokens decode to nothing.
    if (size := _vocabulary(folder)) is not None and found.num_tokens > size:
        raise _misfit(folder, num_tokens=found.num_tokens, size=size)
    return found


def load_characters(folder: Path | str) -> CharTokenizer | None:
    """The model's character table, if it has one; errors as in `load_tokenizer`. Light."""
    path = Path(folder) / FILE_NAME
    if not path.exists():
        return None
    try:
        found = CharTokenizer(json.loads(path.read_text())["symbols"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no character tokenizer: {error!r}") from error
    # Every token that can be sampled has to stand for a character.
    if (size := _vocabulary(folder)) is not None and found.num_tokens != size:
        raise _misfit(folder, num_tokens=found.num_tokens, size=size)
    return found


def _vocabulary(folder: Path | str) -> int | None:
    """Of the model; None where its configuration says nothing, which is for others to refuse."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text())
        size = config.get("text_config", config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def _misfit(folder: Path | str, *, num_tokens: int, size: int) -> UserError:
    return UserError(
        f"the tokenizer in {folder} has {num_tokens} tokens, the model a vocabulary of {size}",
        code="model.vocabulary",
        hint="put the tokenizer that the model was made with beside its weights",
        details={"tokens": num_tokens, "vocabulary": size},
    )
