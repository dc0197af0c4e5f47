"""Device memory of an engine's weights, given back while the host weight cache has the only copy.

On a GPU vLLM's sleep level 2 would do it. On the CPU the engine holds most weights in
packed form behind functions of its layers; without those functions nothing holds them any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PACKED = "cpu_linear"
"""The attribute of a vLLM layer whose function holds the packed weight."""


class WeightMemory:
    """Of one model; on the engine's thread only."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._emptied: list[tuple[Any, int]] = []

    def discard(self) -> int:
        """Give all of it back; returns bytes. The model must not run before it was loaded again."""
        freed_bytes = 0
        for layer in self._model.modules():
            function = vars(layer).get(_PACKED)
            if function is not None and (packed := sum(map(_num_bytes, _held_by(function)))):
                freed_bytes += packed
                setattr(layer, _PACKED, _missing)
        seen = {storage._cdata for storage, _ in self._emptied}
        for parameter in self._model.parameters():
            storage = parameter.untyped_storage()
            if storage.nbytes() and storage._cdata not in seen:
                seen.add(storage._cdata)
                freed_bytes += storage.nbytes()
                self._emptied.append((storage, storage.nbytes()))
                storage.resize_(0)
        return freed_bytes

    def regain(self) -> None:
        """Make room for the parameters that are loaded in place; their values are undefined."""
        emptied, self._emptied = self._emptied, []
        for storage, num_bytes in emptied:
            storage.resize_(num_bytes)


def _missing(*_: Any) -> Any:
    raise RuntimeError("the weights of this layer were discarded and not loaded again")


def _held_by(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        yield cell.cell_contents


def _num_bytes(held: Any) -> int:
    """Of a packed tensor, or of a oneDNN handle over n × k weights."""
    import torch

    if isinstance(held, torch.Tensor):
        return int(held.untyped_storage().nbytes())
    if hasattr(held, "handler_tensor"):
        return int(held.n * held.k * torch.get_default_dtype().itemsize)
    return 0
