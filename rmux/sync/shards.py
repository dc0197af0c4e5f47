"""Weights as one blob: which tensor lies where, and how the blob is cut between ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmux.errors import NotFoundError, UserError

ALIGNMENT_BYTES = 64
"""Start of every tensor and every cut: a cache line, and a multiple of every element."""

ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of the blob: `bytes` of them from `offset`, row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors of a blob in the order they lie; between them only padding."""

    tensors: tuple[Tensor, ...]
    size_bytes: int

    def __post_init__(self) -> None:
        end = 0
        seen: set[str] = set()
        for tensor in self.tensors:
            if tensor.name in seen:
                raise UserError(f"tensor {tensor.name} is in the manifest twice")
            if tensor.bytes != _tensor_bytes(tensor.dtype, tensor.shape):
                raise UserError(f"tensor {tensor.name} has {tensor.bytes} bytes, not its shape's")
            if tensor.offset < end or tensor.end > self.size_bytes:
                raise UserError(f"tensor {tensor.name} overlaps another or the end of the blob")
            seen.add(tensor.name)
            end = tensor.end

    @staticmethod
    def of(entries: Iterable[tuple[str, str, Iterable[int]]]) -> Manifest:
        """Lays (name, dtype, shape) out one after another, each aligned.

        UserError for an unknown dtype or a name that comes twice.
        """
        tensors = []
        end = 0
        for name, dtype, shape in entries:
            dims = tuple(shape)
            tensor = Tensor(
                name=name,
                dtype=dtype,
                shape=dims,
                offset=_aligned(end),
                bytes=_tensor_bytes(dtype, dims),
            )
            tensors.append(tensor)
            end = tensor.end
        return Manifest(tensors=tuple(tensors), size_bytes=end)

    def tensor(self, name: str) -> Tensor:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise NotFoundError(f"no tensor {name!r} in the manifest")

    def view(self, blob: memoryview, name: str) -> memoryview:
        """The bytes of one tensor inside the blob, shared, not copied."""
        tensor = self.tensor(name)
        return blob[tensor.offset : tensor.end]

    def to_document(self) -> dict[str, Any]:
        return {
            "size_bytes": self.size_bytes,
            "tensors": [
                {
                    "name": tensor.name,
                    "dtype": tensor.dtype,
                    "shape": list(tensor.shape),
                    "offset": tensor.offset,
                    "bytes": tensor.bytes,
                }
                for tensor in self.tensors
            ],
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Manifest:
        """UserError when the document is not a manifest."""
        try:
            return Manifest(
                size_bytes=int(document["size_bytes"]),
                tensors=tuple(
                    Tensor(
                        name=str(entry["name"]),
                        dtype=str(entry["dtype"]),
                        shape=tuple(int(size) for size in entry["shape"]),
                        offset=int(entry["offset"]),
                        bytes=int(entry["bytes"]),
                    )
                    for entry in document["tensors"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"not a weight manifest: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Bytes `begin` to `end` of the blob; empty when the blob is smaller than its cuts."""

    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


def shards(
    size_bytes: int, *, count: int, alignment_bytes: int = ALIGNMENT_BYTES
) -> tuple[Shard, ...]:
    """`count` neighbouring shards that cover the blob, sizes within one alignment unit.

    UserError for a count or an alignment below 1, or a negative size.
    """
    if count < 1 or alignment_bytes < 1 or size_bytes < 0:
        raise UserError(f"cannot cut {size_bytes} bytes into {count} shards")
    units = -(-size_bytes // alignment_bytes)
    cuts = [min(size_bytes, units * index // count * alignment_bytes) for index in range(count + 1)]
    return tuple(Shard(begin=begin, end=end) for begin, end in itertools.pairwise(cuts))


def _tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    if dtype not in ELEMENT_BYTES:
        raise UserError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(ELEMENT_BYTES)}")
    if any(size < 0 for size in shape):
        raise UserError(f"shape {shape} has a negative size")
    return math.prod(shape) * ELEMENT_BYTES[dtype]


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
