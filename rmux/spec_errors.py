"""Turn what pydantic found into one plain error: file, line, key, what to write instead."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rmux.errors import SpecError
from rmux.toml_lines import Location, dotted, line_of, nearest

_WORDS = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "finite_number": "must be finite",
    "missing": "is missing",
}


def spec_error(
    error: ValidationError, *, path: Path | str, text: str, root: type[BaseModel]
) -> SpecError:
    """The first problem of the file in full, the others in `details`.

    Unknown keys come first: what is missing is often only misspelt.
    """
    by_key = {
        problem["key"]: problem
        for problem in reversed([_problem(found, text, root) for found in error.errors()])
    }
    problems = sorted(
        by_key.values(),
        key=lambda problem: (problem["code"] != "spec.unknown-key", problem["line"] or 0),
    )
    first = problems[0]
    message = f"{place(path, first['line'])}{first['message']}"
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more)"
    return SpecError(message, code=first["code"], details={"problems": problems})


def place(path: Path | str, line: int | None) -> str:
    """'jobs/a.toml:14: '"""
    return f"{path}: " if line is None else f"{path}:{line}: "


def _problem(found: Any, text: str, root: type[BaseModel]) -> dict[str, Any]:
    location = _own_keys(tuple(found["loc"]), root)
    code, message = "spec.invalid", _message(found, location)
    if found["type"] == "extra_forbidden":
        code, message = "spec.unknown-key", _unknown_key(location, root)
    key = dotted(location).split(".cores[")[0] if "cores" in location else dotted(location)
    return {"key": key, "line": line_of(text, location), "code": code, "message": message}


def _message(found: Any, location: Location) -> str:
    kind, context, given = found["type"], found.get("ctx", {}), found["input"]
    if kind == "value_error":
        return f"{dotted(location)} {context['error']}"
    if kind in _WORDS:
        return f"{dotted(location)} {_WORDS[kind]}"
    if kind == "literal_error":
        return f"{dotted(location)} is {given!r}; write {context['expected']}"
    if bound := _bound(context):
        return f"{dotted(location)} is {given!r}; it must be {bound}"
    return f"{dotted(location)}: {found['msg'][:1].lower()}{found['msg'][1:]}"


def _bound(context: dict[str, Any]) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return " and ".join(f"{words[key]} {_plain(context[key])}" for key in words if key in context)


def _plain(number: float) -> str:
    return f"{int(number)}" if number == int(number) else f"{number:g}"


def _unknown_key(location: Location, root: type[BaseModel]) -> str:
    section = _model_at(location[:-1], root)
    key = str(location[-1])
    meant = _in_a_section(key, root) if len(location) == 1 else None
    if meant is None and section is not None:
        meant = nearest(key, _keys(section))
    hint = f" (did you mean {meant}?)" if meant else ""
    return f"{dotted(location)} is not a key{hint}"


def _in_a_section(key: str, root: type[BaseModel]) -> str | None:
    """'rollout.max_tokens' for a 'max_tokens' that was written outside its table."""
    for name in _keys(root):
        section = _model_at((name,), root)
        if section is not None and section is not root and key in _keys(section):
            return f"{name}.{key}"
    return None


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _own_keys(location: Location, root: type[BaseModel]) -> Location:
    """Without what pydantic adds for the arms of a union: `cores.list[int].0` is `cores[0]`."""
    return tuple(part for part in location if isinstance(part, int) or "[int" not in part)


def _model_at(location: Location, root: type[BaseModel]) -> type[BaseModel] | None:
    model: Any = root
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            model = fields[part].annotation if part in fields else None
        else:
            model = _item_of(model)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _item_of(hint: Any) -> Any:
    """The type inside list[X], dict[str, X] and Annotated[X, …]."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if isinstance(hint, types.GenericAlias):
        return typing.get_args(hint)[-1]
    return None
