"""The weights in a checkpoint by their Hugging Face names, whatever ranks wrote it."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Size, Tensor

from rmux.errors import BackendError
from rmux.run.workers.train_state_files import SavedParts

_FACTS = "trainer.json"


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every parameter that rollout engines are sent, float32; tied ones once.

    `folder` is one checkpoint, such as RUN/checkpoints/it-000010. `model.load_state_dict(found,
    strict=False)` takes them. BackendError for a folder that holds no whole checkpoint.
    """
    try:
        entries = json.loads((folder / _FACTS).read_text())["weights"]
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(
            f"{folder} is no checkpoint of a trainer: {error!r}", code="checkpoint.missing"
        ) from error
    saved = SavedParts(folder)
    flat, synced_numel = saved.whole("weights"), saved.facts.get("synced_numel")
    if flat is None or synced_numel is None:
        raise BackendError(f"no named weights in {folder}", code="checkpoint.missing")
    found: dict[str, Tensor] = {}
    start = 0
    for name, shape in entries:
        if start == synced_numel:
            break  # what follows is tied to a parameter, or a buffer
        end = start + Size(shape).numel()
        found[name] = flat[start:end].view(*shape)
        start = end
    return found
