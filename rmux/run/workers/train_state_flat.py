"""Where ZeRO 1 and 2 keep a rank's state: all parameters in one buffer, an equal range its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rmux.errors import BackendError

Look = Callable[[Tensor], Tensor]
"""Gives a tensor's values where they lie now: itself, or its copy on the host."""


class FlatLayout:
    """BackendError when this DeepSpeed keeps its state otherwise than this was written for."""

    name = "flat"

    def __init__(self, optimizer: Any, *, rank: int, ranks: int, look: Look) -> None:
        self._look = look
        try:
            (self._flat,) = optimizer.bit16_groups_flat
            (self._partition,) = optimizer.single_partition_of_fp32_groups
            (self.params,) = optimizer.round_robin_bit16_groups
        except (AttributeError, ValueError) as error:
            raise BackendError(
                f"this DeepSpeed keeps its ZeRO state in an unknown form: {error}",
                code="backend.deepspeed",
            ) from error
        self.numel = sum(param.numel() for param in self.params)
        step = self._partition.numel()
        self._start = min(rank * step, self.numel)
        self._end = min(self._start + step, self.numel)
        if self._flat.dtype != torch.float32 or self._flat.numel() != step * ranks:
            raise BackendError(
                f"expected {step * ranks} float32 parameters in one buffer, found "
                f"{self._flat.numel()} of {self._flat.dtype}",
                code="backend.deepspeed",
            )

    @property
    def masters(self) -> list[Tensor]:
        """What the optimizer steps; its state is keyed by them."""
        return [self._partition]

    @property
    def tensors(self) -> list[Tensor]:
        """Everything but the optimizer's own state, aliases included."""
        return [self._flat, self._partition]

    @property
    def saved_numel(self) -> int:
        """Elements of a rank's file."""
        return int(self._end - self._start)

    def facts(self) -> dict[str, Any]:
        """What a reader needs to put the parts of all ranks together."""
        return {}

    def saved_weights(self) -> Tensor:
        return self._look(self._flat)[self._start : self._end]

    def shares(self, whole: Tensor) -> list[Tensor]:
        """The share of each master in a tensor over all parameters; may be shorter than it."""
        return [whole[self._start : self._end]]

    def set_weights(self, whole: Tensor) -> None:
        with torch.no_grad():
            self._flat[: self.numel].copy_(whole)
            self._partition[: self._end - self._start].copy_(whole[self._start : self._end])

    def whole(self) -> list[Tensor]:
        """All parameters in order, in one piece or several: every rank has them."""
        return [self._look(self._flat)[: self.numel]]

    def exchange(self, num_params: int) -> Iterator[Tensor]:
        """The first parameters, one by one."""
        start = 0
        for param in self.params[:num_params]:
            yield self._look(self._flat)[start : start + param.numel()]
            start += param.numel()
