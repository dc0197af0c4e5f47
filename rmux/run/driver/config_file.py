"""The JSON file a driver is started with."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

from rmux.errors import UserError
from rmux.run.driver.engines import DriverConfig


def write_config(path: Path, config: DriverConfig) -> None:
    """Write the file whole or not at all, readable by its owner only."""
    text = json.dumps(_plain(config), indent=1)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    scratch.replace(path)


def read_config(path: Path) -> DriverConfig:
    """What `write_config` wrote. UserError when the file is missing or is not a driver's."""
    try:
        return typing.cast("DriverConfig", _build(DriverConfig, json.loads(path.read_text())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no driver configuration: {error}",
            hint="drivers are started by `rmux group up`",
        ) from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | StrEnum) else value


def _build(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        inner = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return None if value is None else _build(inner[0], value)
    if typing.get_origin(hint) is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], item) for item in value)
        return tuple(_build(arg, item) for arg, item in zip(args, value, strict=True))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        cls = typing.cast("type[Any]", hint)
        return cls(**{name: _build(hints[name], item) for name, item in value.items()})
    if isinstance(hint, type) and issubclass(hint, Path | StrEnum):
        return hint(value)
    return value
