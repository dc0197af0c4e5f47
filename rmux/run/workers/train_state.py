"""One rank's part of the weights and of the optimizer's state, without waiting for other ranks.

The weights in the order of the model's parameters are the blob that goes over the wire, each rank
sending an equal range of it; what the ZeRO stage does with them is its layout's business. So a
checkpoint written by any number of ranks of any stage can be read by any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from rmux.errors import BackendError, ConflictError
from rmux.run.workers.cache import WeightEntry
from rmux.run.workers.train_state_files import SavedParts, write_part
from rmux.run.workers.train_state_flat import FlatLayout
from rmux.run.workers.train_state_moved import OwnCopies, memory_of
from rmux.run.workers.train_state_split import SplitLayout

_MOMENTS = ("exp_avg", "exp_avg_sq")
_COUNTERS = ("global_steps", "micro_steps", "global_samples")
NEVER_SYNCED = "value_head."
"""Parameters of that prefix are trained and saved; rollout engines do not have them."""


class RankState:
    """`engine` is a DeepSpeed engine of ZeRO stage 1, 2 or 3. BackendError when it is built
    otherwise than this was written for."""

    def __init__(self, engine: Any, *, rank: int, ranks: int) -> None:
        self._engine, self._rank, self._ranks = engine, rank, ranks
        self.copies = OwnCopies(self._tensors)
        made = SplitLayout if engine.zero_optimization_stage() == 3 else FlatLayout
        self._layout: SplitLayout | FlatLayout = made(
            engine.optimizer, rank=rank, ranks=ranks, look=self.copies.look
        )
        self._inner = engine.optimizer.optimizer
        found = {id(param): name for name, param in engine.module.named_parameters()}
        self._names = [found[id(param)] for param in self._layout.params]
        self._numels = [_shape(param).numel() for param in self._layout.params]
        self._num_synced = sum(not name.startswith(NEVER_SYNCED) for name in self._names)
        if any(name.startswith(NEVER_SYNCED) for name in self._names[: self._num_synced]):
            raise BackendError(
                f"parameters named {NEVER_SYNCED}* must come last", code="backend.deepspeed"
            )
        synced = sum(self._numels[: self._num_synced])
        self._start, self._end = synced * rank // ranks, synced * (rank + 1) // ranks
        self._prepared: _Prepared | None = None

    def entries(self) -> tuple[WeightEntry, ...]:
        """The blob's tensors, tied ones and persistent buffers included, in order, gapless."""
        named = list(zip(self._names, self._layout.params, strict=True))[: self._num_synced]
        found, offset = [], 0
        for name, tensor in named + self._extras():
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = tuple(_shape(tensor))
            found.append(WeightEntry(name=name, dtype=dtype, shape=shape, offset=offset))
            offset += found[-1].num_bytes
        return tuple(found)

    def changed(self) -> None:
        """What `prepare` made is no longer so."""
        self._prepared = None

    def prepare(self) -> None:
        """Make `parts` and `checksum` independent of the other ranks.

        A collective of all ranks where each has only pieces of the weights, after `changed`.
        """
        if self._prepared is None and self._layout.whole() is None:
            self._take(self._layout.exchange(self._num_synced))

    def parts(self) -> list[tuple[int, Tensor]]:
        """This rank's bytes of the blob, on the host: where each piece begins, and the piece.

        The last rank adds what follows the parameters: a tied `lm_head.weight` must be sent, or
        an engine that repacks its weights keeps the old one. Not to be written to. ConflictError
        when it has to be prepared first.
        """
        whole = self._layout.whole()
        if whole is None:
            ready = self._ready()
            parts, tail = [(self._start, ready.part)], ready.tail
        else:
            parts, tail = list(_between(whole, self._start, self._end)), None
            if self._rank == self._ranks - 1:
                tail = _joined(list(self._tail(whole)))
        found = [(4 * start, _bytes_of(part)) for start, part in parts if part.numel()]
        if tail is not None and tail.numel():
            found.append((4 * sum(self._numels[: self._num_synced]), tail))
        return found

    def checksum(self) -> str:
        """xxh3_128 of the whole blob. ConflictError when it has to be prepared first."""
        whole = self._layout.whole()
        if whole is None:
            return self._ready().checksum
        digest = xxhash.xxh3_128()
        for _, part in _between(whole, 0, sum(self._numels[: self._num_synced])):
            digest.update(memory_of(_bytes_of(part)))
        for part in self._tail(whole):
            digest.update(memory_of(part))
        return str(digest.hexdigest())

    def save(self, folder: Path) -> int:
        """Write this rank's part below `folder`; returns bytes."""
        look, count = self.copies.look, self._layout.saved_numel
        tensors = {"weights": self._layout.saved_weights()}
        states = [self._inner.state.get(master, {}) for master in self._layout.masters]
        for name in _MOMENTS:
            if all(name in state for state in states):
                tensors[name] = torch.cat([look(state[name]) for state in states])[:count]
        tensors["torch_rng"] = torch.get_rng_state()
        facts = {
            "step": int(look(states[0]["step"])) if states[0] else 0,
            "numel": self._layout.numel,
            "synced_numel": sum(self._numels[: self._num_synced]),
            **self._layout.facts(),
            **{name: getattr(self._engine, name) for name in _COUNTERS},
        }
        return write_part(folder, tensors, facts=facts, rank=self._rank, ranks=self._ranks)

    def restore(self, folder: Path) -> None:
        """Load what the ranks of any earlier attempt saved. BackendError for another model's."""
        saved = SavedParts(folder)
        weights, numel = saved.whole("weights"), self._layout.numel
        if weights is None or saved.facts["numel"] != numel or weights.numel() != numel:
            raise BackendError(
                f"the checkpoint in {folder} has {saved.facts['numel']} parameters, the model "
                f"{numel}",
                code="checkpoint.model",
            )
        self._layout.set_weights(weights)
        if self._layout.whole() is None:
            self._take(weights.split(self._numels)[: self._num_synced])
        del weights
        masters, state = self._layout.masters, self._inner.state
        for master in masters:
            state.pop(master, None)
        for name in _MOMENTS:
            moments = saved.whole(name)
            if moments is None:
                continue
            for master, share in zip(masters, self._layout.shares(moments), strict=True):
                kept = state.setdefault(master, {})
                kept.setdefault("step", torch.tensor(float(saved.facts["step"])))
                kept[name] = torch.zeros_like(master)
                kept[name][: share.numel()].copy_(share)
        for name in _COUNTERS:
            setattr(self._engine, name, saved.facts[name])
        torch.set_rng_state(saved.first("torch_rng"))

    def _take(self, values: Iterable[Tensor]) -> None:
        """Keep this rank's part of the whole parameters that pass by, and the checksum of all."""
        tied = {index: torch.empty(0) for _, _, index in self._named_extras() if index is not None}
        part = torch.empty(self._end - self._start)
        digest, at = xxhash.xxh3_128(), 0
        for index, flat in enumerate(values):
            start, end = max(self._start, at), min(self._end, at + flat.numel())
            if start < end:
                part[start - self._start : end - self._start] = flat[start - at : end - at]
            if index in tied:
                tied[index] = flat.clone()
            if self._rank == 0:
                digest.update(memory_of(flat))
            at += flat.numel()
        tail = [
            _bytes_of(self.copies.look(tensor) if index is None else tied[index])
            for _, tensor, index in self._named_extras()
        ]
        for piece in tail:
            digest.update(memory_of(piece))
        self._prepared = _Prepared(
            part=part,
            tail=_joined(tail if self._rank == self._ranks - 1 else []),
            checksum=digest.hexdigest() if self._rank == 0 else "",
        )

    def _ready(self) -> _Prepared:
        if self._prepared is None:
            raise ConflictError("the weights changed: the ranks have to exchange them first")
        return self._prepared

    def _tail(self, whole: list[Tensor]) -> Iterator[Tensor]:
        """The bytes of what follows the parameters in the blob."""
        for _, tensor, index in self._named_extras():
            if index is None:
                yield _bytes_of(self.copies.look(tensor))
            else:
                start = sum(self._numels[:index])
                for _, part in _between(whole, start, start + self._numels[index]):
                    yield _bytes_of(part)

    def _named_extras(self) -> list[tuple[str, Tensor, int | None]]:
        """Names that are no parameter's own, with the parameter that they are tied to, if any."""
        module, order = self._engine.module, {id(p): i for i, p in enumerate(self._layout.params)}
        known = {name for name, _ in module.named_parameters()}
        return [
            (name, tensor, order.get(id(tensor)))
            for name, tensor in module.state_dict(keep_vars=True).items()
            if name not in known and tensor.is_floating_point()
        ]

    def _extras(self) -> list[tuple[str, Tensor]]:
        return [(name, tensor) for name, tensor, _ in self._named_extras()]

    def _tensors(self) -> Iterator[Tensor]:
        """The state at an optimizer-step boundary, for `OwnCopies`."""
        yield from self._layout.tensors
        module = self._engine.module
        yield from (param.data for param in module.parameters())
        yield from module.buffers()
        for kept in self._inner.state.values():
            yield from (kept[name] for name in _MOMENTS if name in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What a rank that has only pieces of the weights keeps to send without the others."""

    part: Tensor
    tail: Tensor | None
    checksum: str
    """Of the whole blob; the first rank's only."""


def _shape(tensor: Any) -> torch.Size:
    """ZeRO 3 empties parameters and notes their shapes."""
    return torch.Size(getattr(tensor, "ds_shape", tensor.shape))


def _between(pieces: list[Tensor], start: int, end: int) -> Iterator[tuple[int, Tensor]]:
    """The elements [start, end) of tensors that follow each other, without a copy."""
    at = 0
    for piece in pieces:
        first, last = max(start, at), min(end, at + piece.numel())
        if first < last:
            yield first, piece[first - at : last - at]
        at += piece.numel()


def _joined(parts: list[Tensor]) -> Tensor | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return torch.cat(parts)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().cpu().view(torch.uint8)
