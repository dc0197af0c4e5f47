"""Where ZeRO 3 keeps a rank's state: a piece of every parameter, one after another.

What is sent is a range of the blob, as with ZeRO 1 and 2, so the ranks exchange their pieces. A
single rank has everything, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from rmux.errors import BackendError
from rmux.run.workers.train_state_flat import Look

_BUCKET_BYTES = 64 * 2**20
"""Of one exchange; a parameter that is larger goes alone."""


class SplitLayout:
    """BackendError when this DeepSpeed keeps its state otherwise than this was written for."""

    name = "split"

    def __init__(self, optimizer: Any, *, rank: int, ranks: int, look: Look) -> None:
        self._optimizer, self._rank, self._ranks, self._look = optimizer, rank, ranks, look
        try:
            self._groups: list[list[Any]] = [list(group) for group in optimizer.fp16_groups]
            pieces = [[int(p.ds_tensor.ds_numel) for p in group] for group in self._groups]
            self.params = [param for group in self._groups for param in group]
            self._numels = [int(param.ds_numel) for param in self.params]
            sizes = [flat.numel() for flat in optimizer.fp32_partitioned_groups_flat]
        except AttributeError as error:
            raise BackendError(
                f"this DeepSpeed keeps its ZeRO-3 state in an unknown form: {error}",
                code="backend.deepspeed",
            ) from error
        self._pieces = [piece for group in pieces for piece in group]
        self.numel = sum(self._numels)
        odd = [p for p in self.masters if p.dtype != torch.float32]
        if odd or sizes != [sum(group) for group in pieces] or self._misfit():
            raise BackendError(
                f"expected {self.numel} float32 parameters, cut into {ranks} equal pieces each, "
                f"found partitions of {sizes}",
                code="backend.deepspeed",
            )

    @property
    def masters(self) -> list[Tensor]:
        """What the optimizer steps; its state is keyed by them."""
        return list(self._optimizer.fp32_partitioned_groups_flat)

    @property
    def tensors(self) -> list[Tensor]:
        """Everything but the optimizer's own state, aliases included."""
        optimizer = self._optimizer
        found = [*self.masters, *optimizer.fp16_partitioned_groups_flat, optimizer.lp_param_buffer]
        buffer = getattr(optimizer, "grad_partitions_flat_buffer", None)
        return [*found, *([] if buffer is None else [buffer])]

    @property
    def saved_numel(self) -> int:
        """Elements of a rank's file, what fills up its last pieces included."""
        return sum(self._pieces)

    def facts(self) -> dict[str, Any]:
        """What a reader needs to put the parts of all ranks together."""
        return {"numels": self._numels}

    def saved_weights(self) -> Tensor:
        return torch.cat([self._look(master).detach() for master in self.masters])

    def shares(self, whole: Tensor) -> list[Tensor]:
        """The share of each master in a tensor over all parameters, its pieces filled up."""
        found, at, index = [], 0, 0
        for group in self._groups:
            parts = []
            for _ in group:
                numel, piece = self._numels[index], self._pieces[index]
                part = whole.new_zeros(piece)
                start = min(self._rank * piece, numel)
                end = min(start + piece, numel)
                part[: end - start] = whole[at + start : at + end]
                parts.append(part)
                at, index = at + numel, index + 1
            found.append(torch.cat(parts))
        return found

    def set_weights(self, whole: Tensor) -> None:
        shares = self.shares(whole)
        # In float32 DeepSpeed steps the very tensors that it computes with, else copies of them.
        for kept in (self.masters, self._optimizer.fp16_partitioned_groups_flat):
            for tensor, share in zip(kept, shares, strict=True):
                tensor.data.copy_(share)
        # Small parameters stay whole between the passes; they are collected again when needed.
        self._optimizer._partition_all_parameters()

    def whole(self) -> list[Tensor] | None:
        """All parameters in order, in one piece or several; None when other ranks have some."""
        if self._ranks > 1:
            return None
        return [self._look(master).detach() for master in self.masters]

    def exchange(self, num_params: int) -> Iterator[Tensor]:
        """The first parameters, one by one. A collective; the values stay the caller's."""
        index = 0
        for master, group in zip(self.masters, self._groups, strict=True):
            own, at = self._look(master).detach(), 0
            for size in _buckets(self._pieces[index : index + len(group)]):
                pieces = self._pieces[index : index + size]
                mine = own[at : at + sum(pieces)]
                everyone = [torch.empty_like(mine) for _ in range(self._ranks)]
                torch.distributed.all_gather(everyone, mine)
                for offset, piece in zip(_starts(pieces), pieces, strict=True):
                    parts = [values[offset : offset + piece] for values in everyone]
                    if index < num_params:
                        yield torch.cat(parts)[: self._numels[index]]
                    index += 1
                at += sum(pieces)
                if index >= num_params:
                    return

    def _misfit(self) -> bool:
        sizes = zip(self._numels, self._pieces, strict=True)
        return any(piece != -(-numel // self._ranks) for numel, piece in sizes)


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _buckets(pieces: Sequence[int]) -> Iterator[int]:
    """How many neighbours each exchange takes."""
    count = num_bytes = 0
    for piece in pieces:
        if count and num_bytes + 4 * piece > _BUCKET_BYTES:
            yield count
            count = num_bytes = 0
        count, num_bytes = count + 1, num_bytes + 4 * piece
    if count:
        yield count
