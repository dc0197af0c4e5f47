"""What the ranks of any attempt saved, put together for ranks of any number and ZeRO stage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rmux.errors import BackendError

_NAME = re.compile(r"part-(\d+)-of-(\d+)\.safetensors")


def write_part(
    folder: Path, tensors: Mapping[str, Tensor], *, facts: Mapping[str, Any], rank: int, ranks: int
) -> int:
    """Write one rank's part below `folder`; returns bytes."""
    path = folder / f"part-{rank:04d}-of-{ranks:04d}.safetensors"
    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, path, metadata={"facts": json.dumps(facts)})
    return path.stat().st_size


class SavedParts:
    """BackendError for a folder without parts ('checkpoint.missing') or without all of them
    ('checkpoint.torn')."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("part-*.safetensors"))
        if not self._paths:
            raise BackendError(f"no training state in {folder}", code="checkpoint.missing")
        matches = [_NAME.fullmatch(path.name) for path in self._paths]
        ranks = [(int(found[1]), int(found[2])) for found in matches if found]
        if ranks != [(rank, len(self._paths)) for rank in range(len(self._paths))]:
            raise BackendError(
                f"the training state in {folder} is not that of one set of ranks: "
                f"{', '.join(path.name for path in self._paths)}",
                code="checkpoint.torn",
            )
        self.facts = self._facts_of(self._paths[0])

    def whole(self, name: str) -> Tensor | None:
        """A value per parameter element, in order; None when nobody saved it."""
        parts = []
        for path in self._paths:
            with safe_open(path, framework="pt") as file:
                if name not in file.keys():  # noqa: SIM118 - not a dict
                    return None
                parts.append(file.get_tensor(name))
        numels = self.facts.get("numels")
        return torch.cat(parts) if numels is None else _joined(parts, numels)

    def first(self, name: str) -> Tensor:
        """What the first rank saved under that name."""
        with safe_open(self._paths[0], framework="pt") as file:
            return file.get_tensor(name)

    def _facts_of(self, path: Path) -> dict[str, Any]:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
        return facts


def _joined(parts: Sequence[Tensor], numels: Sequence[int]) -> Tensor:
    """Each part holds one piece of every parameter, all pieces of a parameter equally long."""
    whole = torch.empty(sum(numels), dtype=parts[0].dtype)
    offset = at = 0
    for numel in numels:
        piece = -(-numel // len(parts))
        pieces = torch.cat([part[at : at + piece] for part in parts])
        whole[offset : offset + numel] = pieces[:numel]
        offset, at = offset + numel, at + piece
    return whole
