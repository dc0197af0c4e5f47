"""Rows of a trace file, in chunks of checked columns: CSV with a header, or one JSON object a line.

Whatever a file holds, what comes out is either sound or a UserError with file, line and key.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from rmux.errors import UserError
from rmux.place.sim.columns import Source, find

MOST_ROWS = 5_000_000
_CHUNK = 4_096
_LONGEST_NAME = 200

_Range = tuple[float, float, bool]
"""Least, most, and whether only whole numbers."""
_TEN_YEARS_S = 10 * 365 * 86400.0
NUMBERS: dict[str, _Range] = {
    "arrival_s": (0.0, 1e13, False),
    "duration_s": (1e-3, _TEN_YEARS_S, False),
    "num_gpu": (1, 1e6, True),
    "slo": (1.0, 1e6, False),
    "rollout_s": (1e-3, _TEN_YEARS_S, False),
    "train_s": (1e-3, _TEN_YEARS_S, False),
    "sync_s": (0.0, _TEN_YEARS_S, False),
    "iterations": (1, 1e12, True),
    "priority": (-1e6, 1e6, True),
}
_TEXTS = ("job", "tenant", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows. Empty `tenants` and `sources`: the file has no such column."""

    lines: list[int]
    jobs: list[str]
    tenants: list[str]
    sources: list[str]
    numbers: Mapping[str, NDArray[np.float64]]

    def take(self, kept: Sequence[int]) -> Chunk:
        return Chunk(
            lines=[self.lines[i] for i in kept],
            jobs=[self.jobs[i] for i in kept],
            tenants=[self.tenants[i] for i in kept] if self.tenants else [],
            sources=[self.sources[i] for i in kept] if self.sources else [],
            numbers={key: values[list(kept)] for key, values in self.numbers.items()},
        )


def read(
    stream: BinaryIO, *, mapping: Mapping[str, Source], name: str
) -> Generator[Chunk, None, None]:
    """Chunks of a seekable file's rows, in its order. UserError: what is wrong, and where."""
    head = stream.read(4096)
    stream.seek(0)
    _check_encoding(head, name)
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
    raw = _json_rows if is_json else _csv_rows
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="" if not is_json else None)
    count = 0
    try:
        for lines, cells in raw(text, mapping, name):
            count += len(lines)
            if count > MOST_ROWS:
                raise UserError(
                    f"{name}:{lines[-1]}: more than {MOST_ROWS:,} rows", code="trace.too-large"
                )
            yield _checked(lines, cells, name)
    except UnicodeDecodeError as error:
        raise _not_utf8(stream, name) from error
    finally:
        text.detach()


_Cells = dict[str, tuple[list[Any], float]]
"""Raw values by key, and the factor that makes them seconds."""


def _csv_rows(
    text: Iterable[str], mapping: Mapping[str, Source], name: str
) -> Iterator[tuple[list[int], _Cells]]:
    reader = csv.reader(text, strict=True)
    try:
        header = next((row for row in reader if row), None)
        if header is None:
            raise UserError(f"{name}: empty; not even a header", code="trace.empty")
        _check_header(header, f"{name}:{reader.line_num}")
        found = find(header, mapping=mapping, where=f"{name}:{reader.line_num}")
        index = {header_name: place for place, header_name in enumerate(header)}
        numbered = ((reader.line_num, row) for row in reader if row)
        while chunk := list(islice(numbered, _CHUNK)):
            for line, row in chunk:
                if len(row) != len(header):
                    raise UserError(
                        f"{name}:{line}: {len(row)} fields where the header has {len(header)}",
                        code="trace.row",
                    )
            columns = list(zip(*(row for _, row in chunk), strict=True))
            yield (
                [line for line, _ in chunk],
                {
                    key: (list(columns[index[source.header]]), source.factor)
                    for key, source in found.items()
                },
            )
    except csv.Error as error:
        raise UserError(
            f"{name}:{reader.line_num}: not CSV: {error}", code="trace.unreadable"
        ) from error


def _check_header(header: Sequence[str], where: str) -> None:
    for place, column in enumerate(header):
        if column.strip() and column in header[:place]:
            raise UserError(f"{where}: two columns {column[:80]!r}", code="trace.column")


def _json_rows(
    text: Iterable[str], mapping: Mapping[str, Source], name: str
) -> Iterator[tuple[list[int], _Cells]]:
    plans: dict[tuple[str, ...], dict[str, Source]] = {}
    numbered = ((number, line) for number, line in enumerate(text, start=1) if line.strip())
    while chunk := list(islice(numbered, _CHUNK)):
        cells: _Cells = {}
        for place, (number, line) in enumerate(chunk):
            record = _record(line, f"{name}:{number}")
            keys = tuple(record)
            if keys not in plans:
                plans[keys] = find(keys, mapping=mapping, where=f"{name}:{number}")
            for key, source in plans[keys].items():
                if key not in cells:
                    cells[key] = ([None] * len(chunk), source.factor)
                value = record[source.header]
                if source.factor != cells[key][1] and isinstance(value, int | float):
                    value *= source.factor / cells[key][1]
                cells[key][0][place] = value
        yield [number for number, _ in chunk], cells


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where}: not JSON: {error}",
            code="trace.unreadable",
            hint='one object a line, such as {"job": "a", "arrival_s": 0, "duration_s": 60}',
        ) from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: not a JSON object", code="trace.unreadable")
    return record


def _checked(lines: list[int], cells: _Cells, name: str) -> Chunk:
    texts = {key: _texts(key, cells[key][0], lines, name) if key in cells else [] for key in _TEXTS}
    numbers = {key: _numbers(key, *cells[key], lines, name) for key in NUMBERS if key in cells}
    numbers["duration_s"] = _durations(numbers, lines, name)
    return Chunk(
        lines=lines,
        jobs=texts["job"] or [str(line) for line in lines],
        tenants=texts["tenant"],
        sources=texts["source"],
        numbers=numbers,
    )


def _texts(key: str, raw: list[Any], lines: list[int], name: str) -> list[str]:
    words: list[str] = []
    if all(type(value) is str for value in raw):
        words = list(map(str.strip, raw))
        short = max(map(len, words)) <= _LONGEST_NAME
        if short and "".join(words).isprintable() and (key != "job" or all(words)):
            return words
        words.clear()
    for line, value in zip(lines, raw, strict=True):
        word = "" if value is None else value.strip() if isinstance(value, str) else str(value)
        if isinstance(value, dict | list | bool):
            _fail(name, line, key, f"{_shown(value)} is not a name")
        if key == "job" and not word:
            _fail(name, line, key, "missing")
        if len(word) > _LONGEST_NAME or not word.isprintable():
            _fail(name, line, key, f"{_shown(word)} cannot be a name")
        words.append(word)
    return words


def _numbers(
    key: str, raw: list[Any], factor: float, lines: list[int], name: str
) -> NDArray[np.float64]:
    """NaN where an optional value is missing."""
    least, most, whole = NUMBERS[key]
    try:
        # JSON's true and false are no numbers, though Python takes them for such.
        plain = float if isinstance(raw[0], str) else _plain
        values = np.array(list(map(plain, raw)))
    except (ValueError, TypeError, OverflowError):
        values = _one_by_one(key, raw, lines, name)
    with np.errstate(over="ignore"):
        values = values * factor
    bad = ~((values >= least) & (values <= most))
    if whole:
        bad |= values != np.floor(values)
    for place in np.flatnonzero(bad):
        value = raw[place]
        if _is_blank(value):
            if key == "arrival_s":
                _fail(name, lines[place], key, "missing")
            continue
        _fail(name, lines[place], key, _why(key, values[place], _shown(value)))
    return values


def _plain(value: Any) -> float:
    if value is True or value is False:
        raise TypeError
    return float(value)


def _one_by_one(key: str, raw: list[Any], lines: list[int], name: str) -> NDArray[np.float64]:
    read_one: Callable[[Any], float] = _instant_s if key == "arrival_s" else _plain
    values = np.full(len(raw), np.nan)
    for place, value in enumerate(raw):
        if _is_blank(value):
            continue
        try:
            values[place] = read_one(value)
        except (ValueError, TypeError, OverflowError):
            _fail(name, lines[place], key, f"{_shown(value)} is not a number")
    return values


def _instant_s(value: Any) -> float:
    """A number, or a date and time, of UTC unless it says otherwise."""
    try:
        return _plain(value)
    except ValueError:
        at = datetime.fromisoformat(value.strip())
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _durations(
    numbers: Mapping[str, NDArray[np.float64]], lines: list[int], name: str
) -> NDArray[np.float64]:
    """As given, else iterations x (rollout + train + sync)."""
    nothing = np.full(len(lines), np.nan)
    given = numbers.get("duration_s", nothing)
    sync_s = np.nan_to_num(numbers.get("sync_s", nothing))
    loop_s = numbers.get("rollout_s", nothing) + numbers.get("train_s", nothing) + sync_s
    durations = np.where(np.isnan(given), numbers.get("iterations", nothing) * loop_s, given)
    for place in np.flatnonzero(~(durations <= NUMBERS["duration_s"][1])):
        why = "missing" if math.isnan(durations[place]) else "iterations take more than ten years"
        _fail(name, lines[place], "duration_s", why)
    for key, other in (("rollout_s", "train_s"), ("train_s", "rollout_s")):
        lonely = np.isnan(numbers.get(key, nothing)) & ~np.isnan(numbers.get(other, nothing))
        for place in np.flatnonzero(lonely):
            _fail(name, lines[place], key, f"missing, though there is {other}")
    return durations


def _why(key: str, value: float, shown: str) -> str:
    least, most, whole = NUMBERS[key]
    if not math.isfinite(value):
        return f"{shown} is not a finite number"
    if value < least:
        return f"{shown} is less than {least:g}"
    if value > most:
        return f"{shown} is more than {most:g}"
    return f"{shown} is not a whole number" if whole else f"{shown} is not a number"


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= 40 else f"{text[:36]}…")


def _fail(name: str, line: int, key: str, why: str) -> NoReturn:
    raise UserError(f"{name}:{line}: {key}: {why}", code="trace.row")


def _check_encoding(head: bytes, name: str) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head:
        raise UserError(
            f"{name}: not UTF-8 text; it looks like UTF-16 or a binary file",
            code="trace.encoding",
            hint=f"iconv -f UTF-16 -t UTF-8 {name}",
        )


def _not_utf8(stream: BinaryIO, name: str) -> UserError:
    stream.seek(0)
    for number, line in enumerate(stream, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return UserError(
                f"{name}:{number}: not UTF-8: byte 0x{line[error.start]:02x} at {error.start + 1}",
                code="trace.encoding",
                hint=f"if it is Latin-1: iconv -f LATIN1 -t UTF-8 {name}",
            )
    return UserError(f"{name}: not UTF-8 text", code="trace.encoding")
