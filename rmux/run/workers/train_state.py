"""One rank's own part of the weights and of the optimizer's state, without any collective.

ZeRO 1 and 2 keep all parameters of a rank in one flat buffer and give each rank an equal range of
it to optimize. So a rank's part is one slice, the weights in the order of that buffer are the blob
that goes over the wire, and a checkpoint written by any number of ranks can be read by any other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rmux.errors import BackendError
from rmux.run.workers.cache import WeightEntry

_MOMENTS = ("exp_avg", "exp_avg_sq")


class RankState:
    """`engine` is a DeepSpeed engine of ZeRO stage 1 or 2. BackendError when it is built otherwise
    than this was written for."""

    def __init__(self, engine: Any, *, rank: int, ranks: int) -> None:
        self._engine, self._rank, self._ranks = engine, rank, ranks
        optimizer = engine.optimizer
        try:
            (self._flat,) = optimizer.bit16_groups_flat
            (self._partition,) = optimizer.single_partition_of_fp32_groups
            (self._params,) = optimizer.round_robin_bit16_groups
            self._inner = optimizer.optimizer
        except (AttributeError, ValueError) as error:
            raise BackendError(
                f"this DeepSpeed keeps its ZeRO state in an unknown form: {error}",
                code="backend.deepspeed",
            ) from error
        self._numel = sum(param.numel() for param in self._params)
        step = self._partition.numel()
        self._start = min(rank * step, self._numel)
        self._end = min(self._start + step, self._numel)
        if self._flat.dtype != torch.float32 or self._flat.numel() != step * ranks:
            raise BackendError(
                f"expected {step * ranks} float32 parameters in one buffer, found "
                f"{self._flat.numel()} of {self._flat.dtype}",
                code="backend.deepspeed",
            )

    def entries(self) -> tuple[WeightEntry, ...]:
        """The blob's tensors, tied ones and persistent buffers included, in order, gapless."""
        names = {id(param): name for name, param in self._engine.module.named_parameters()}
        tensors = [(names[id(param)], param) for param in self._params] + self._extras()
        found, offset = [], 0
        for name, tensor in tensors:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found.append(
                WeightEntry(name=name, dtype=dtype, shape=tuple(tensor.shape), offset=offset)
            )
            offset += found[-1].num_bytes
        return tuple(found)

    def part(self) -> tuple[int, Tensor]:
        """A copy of this rank's bytes of the blob, and where they begin.

        The last rank adds what follows the parameters: a tied `lm_head.weight` must be sent, or
        an engine that repacks its weights keeps the old one.
        """
        parts = [_bytes_of(self._flat[self._start : self._end])]
        if self._rank == self._ranks - 1:
            parts += [_bytes_of(tensor) for _, tensor in self._extras()]
        return self._start * self._flat.element_size(), torch.cat(parts)

    def whole(self) -> Tensor:
        """A copy of the whole blob: ZeRO 1 and 2 leave all parameters on every rank."""
        extras = [_bytes_of(tensor) for _, tensor in self._extras()]
        return torch.cat([_bytes_of(self._flat[: self._numel]), *extras])

    def save(self, folder: Path) -> int:
        """Write this rank's part below `folder`; returns bytes."""
        tensors = {"weights": self._flat[self._start : self._end].clone()}
        moments = self._inner.state.get(self._partition, {})
        for name in _MOMENTS:
            if name in moments:
                tensors[name] = moments[name][: self._end - self._start].clone()
        tensors["torch_rng"] = torch.get_rng_state()
        facts = {
            "step": int(moments["step"]) if moments else 0,
            "numel": self._numel,
            "global_steps": self._engine.global_steps,
            "micro_steps": self._engine.micro_steps,
            "global_samples": self._engine.global_samples,
        }
        path = folder / f"part-{self._rank:04d}-of-{self._ranks:04d}.safetensors"
        save_file(tensors, path, metadata={"facts": json.dumps(facts)})
        return path.stat().st_size

    def restore(self, folder: Path) -> None:
        """Load what the ranks of any earlier attempt saved. BackendError for another model's."""
        facts, tensors = _read(folder)
        if facts["numel"] != self._numel or tensors["weights"].numel() != self._numel:
            raise BackendError(
                f"the checkpoint in {folder} has {facts['numel']} parameters, the model "
                f"{self._numel}",
                code="checkpoint.model",
            )
        with torch.no_grad():
            self._flat[: self._numel].copy_(tensors["weights"])
            self._partition[: self._end - self._start].copy_(self._flat[self._start : self._end])
        state = self._inner.state
        state.pop(self._partition, None)
        if "exp_avg" in tensors:
            state[self._partition] = {"step": torch.tensor(float(facts["step"]))}
            for name in _MOMENTS:
                moment = torch.zeros_like(self._partition)
                own = tensors[name][self._start : self._end]
                moment[: own.numel()].copy_(own)
                state[self._partition][name] = moment
        for name in ("global_steps", "micro_steps", "global_samples"):
            setattr(self._engine, name, facts[name])
        torch.set_rng_state(tensors["torch_rng"])

    def _extras(self) -> list[tuple[str, Tensor]]:
        known = {name for name, _ in self._engine.module.named_parameters()}
        state = self._engine.module.state_dict()
        return [
            (name, tensor.detach())
            for name, tensor in state.items()
            if name not in known and tensor.is_floating_point()
        ]


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    paths = sorted(folder.glob("part-*.safetensors"))
    if not paths:
        raise BackendError(f"no training state in {folder}", code="checkpoint.missing")
    parts: dict[str, list[Tensor]] = {}
    facts: dict[str, Any] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            facts = facts or json.loads(file.metadata()["facts"])
            for name in file.keys():  # noqa: SIM118 - not a dict
                parts.setdefault(name, []).append(file.get_tensor(name))
    rng = parts.pop("torch_rng")[0]
    return facts, {**{name: torch.cat(found) for name, found in parts.items()}, "torch_rng": rng}
