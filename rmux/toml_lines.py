"""Read a TOML file, and say on which line of it a key stands: the parser itself does not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli

from rmux.errors import SpecError

Location = tuple[str | int, ...]
"""Path of a key: ('rollout', 'max_tokens') or ('links', 0, 'rate')."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)
_PART = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")
_MULTILINE = ('"""', "'''")


def read_toml(path: Path | str) -> tuple[dict[str, Any], str]:
    """The document and its text; SpecError names the file and what is wrong with it."""
    try:
        text = Path(path).read_bytes().decode()
    except FileNotFoundError:
        raise SpecError(f"no file {path}", code="spec.missing") from None
    except IsADirectoryError:
        raise SpecError(f"{path} is a folder, not a file", code="spec.missing") from None
    except PermissionError:
        raise SpecError(f"{path} may not be read", code="spec.missing") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", code="spec.syntax") from None
    try:
        return tomli.loads(text), text
    except tomli.TOMLDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}: {error.msg}", code="spec.syntax") from error
    except ValueError:  # Python's own limit on the digits of a number
        raise SpecError(f"{path} has a number of too many digits", code="spec.syntax") from None


def line_of(text: str, location: Location) -> int | None:
    """Line (from 1) of the key, else of the nearest table or key around it."""
    lines = _key_lines(text)
    for length in range(len(location), 0, -1):
        line = lines.get(location[:length])
        if line is not None:
            return line
    return None


def nearest(key: str, choices: Iterable[str]) -> str | None:
    """The choice that `key` was most likely meant to be."""
    found = difflib.get_close_matches(key, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


def dotted(location: Location) -> str:
    """'rollout.max_tokens', 'links[0].rate'."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _key_lines(text: str) -> dict[Location, int]:
    found: dict[Location, int] = {}
    counts: dict[Location, int] = {}
    table: Location = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quote:
            quote = "" if quote in line else quote
            continue
        if match := _HEADER.fullmatch(line):
            table = _indexed(_parts(match[2]), counts, new_item=match[1] == "[[")
            for length in range(1, len(table) + 1):
                found.setdefault(table[:length], number)
        elif match := _KEY.match(line):
            key = _parts(match[1])
            for length in range(1, len(key) + 1):
                found.setdefault(table + key[:length], number)
            quote = _open_quote(line[match.end() :])
    return found


def _parts(text: str) -> Location:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


def _indexed(parts: Location, counts: dict[Location, int], *, new_item: bool) -> Location:
    """The table's location, with the index of the current item after each array of tables."""
    location: Location = ()
    for depth, part in enumerate(parts, start=1):
        location += (part,)
        if depth == len(parts) and new_item:
            counts[location] = counts.get(location, -1) + 1
        if location in counts:
            location += (counts[location],)
    return location


def _open_quote(rest: str) -> str:
    return next((quote for quote in _MULTILINE if rest.count(quote) % 2), "")
