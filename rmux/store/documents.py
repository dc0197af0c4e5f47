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
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


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
    fields = _fields(typing.cast("Any", cls))
    known = {name: _value(hint, document[name]) for name, hint in fields if name in document}
    return cls(**known)


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


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        inner = next(arm for arm in typing.get_args(hint) if arm is not type(None))
        return None if value is None else _value(inner, value)
    if origin is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_value(args[0], item) for item in value)
        return tuple(_value(arg, item) for arg, item in zip(args, value, strict=True))
    if dataclasses.is_dataclass(hint):
        return from_document(typing.cast("type[Any]", hint), value)
    if hint is datetime:
        return datetime.fromisoformat(value)
    if hint is float:
        return float(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value
