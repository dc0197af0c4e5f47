"""Frozen dataclasses as JSON documents, read back tolerantly.

A key that this version does not know is ignored and a missing one takes its default, so that an
older and a newer rmux can share a store of one schema.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")
Reader = Callable[[Any], Any]


def to_document(value: Any) -> Any:
    """JSON values of a dataclass: tuples become lists, enums their value, instants RFC 3339."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_document(getattr(value, name)) for name, _ in _fields(type(value))}
    if isinstance(value, tuple | list):
        return [to_document(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def from_document(cls: type[T], document: dict[str, Any]) -> T:
    """The dataclass of a document that `to_document` made. TypeError when a field is missing."""
    values = {}
    for name, read in _readers(typing.cast("Any", cls)):
        if name in document:
            value = document[name]
            values[name] = value if read is None else read(value)
    return cls(**values)


def to_json(value: Any) -> str:
    """RFC 8259 text: a number that is not finite becomes null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


@cache
def _readers(cls: Any) -> tuple[tuple[str, Reader | None], ...]:
    """How to read each field; None where the JSON value is the value."""
    return tuple((name, _reader(hint)) for name, hint in _fields(cls))


def _reader(hint: Any) -> Reader | None:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        inner = next(arm for arm in typing.get_args(hint) if arm is not type(None))
        return _optional(_reader(inner))
    if origin is tuple:
        return _tuple(typing.get_args(hint))
    if dataclasses.is_dataclass(hint):
        return partial(from_document, typing.cast("type[Any]", hint))
    if hint is datetime:
        return datetime.fromisoformat
    if hint is float:
        return float
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return None


def _optional(read: Reader | None) -> Reader | None:
    if read is None:
        return None
    return lambda value: None if value is None else read(value)


def _tuple(args: tuple[Any, ...]) -> Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        read = _reader(args[0])
        return tuple if read is None else lambda value: tuple(map(read, value))
    reads = [_reader(arg) or _same for arg in args]
    return lambda value: tuple(read(item) for read, item in zip(reads, value, strict=True))


def _same(value: Any) -> Any:
    return value
