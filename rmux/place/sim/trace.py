"""Traces of jobs: read from CSV or JSON lines, checked row by row, cut to a window.

A row has an arrival and a duration, and may have GPUs, a tenant, an SLO and phase times; rmux-trace
(5) lists the columns. Rows stand in columns of numbers, so that a million of them stay small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rmux.errors import NotFoundError, QuantityError, UserError
from rmux.place.sim import rows
from rmux.place.sim.columns import parse_mapping
from rmux.units import parse_duration_s

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Rows by arrival. A number that a row does not have is NaN, a name it does not have ''."""

    name: str
    """The file's."""
    jobs: Sequence[str]
    lines: NDArray[np.int64]
    """Line of each row in the file."""
    numbers: Mapping[str, Numbers]
    """By key: arrival_s, duration_s, num_gpu, slo, rollout_s, train_s, sync_s, iterations,
    priority."""
    tenants: Sequence[str]
    notes: tuple[str, ...] = ()
    """What was done to the rows, for people."""
    words: Mapping[str, int] = field(default_factory=dict)
    """Rows of each source in the file."""

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, key: str) -> Numbers:
        return self.numbers[key]

    @property
    def arrival_s(self) -> Numbers:
        """From the first row's."""
        arrivals: Numbers = self.numbers["arrival_s"] - self.numbers["arrival_s"][:1]
        return arrivals

    def where(self, index: int) -> str:
        """'FILE:LINE' of a row."""
        return f"{self.name}:{int(self.lines[index])}"

    def take(self, index: NDArray[np.int64]) -> Trace:
        """These rows, in this order."""
        return replace(
            self,
            jobs=[self.jobs[i] for i in index],
            lines=self.lines[index],
            numbers={key: values[index] for key, values in self.numbers.items()},
            tenants=[self.tenants[i] for i in index],
        )


def load(
    path: Path | str,
    *,
    columns: str = "",
    source: str = "",
    window: str = "",
    sort: bool = False,
) -> Trace:
    """The trace of a file. `columns` maps keys to headers, `window` is START:END.

    UserError names the file, the row and the key of what cannot be used; NotFoundError for a
    source that the file does not have.
    """
    try:
        with Path(path).open("rb") as stream:
            return read(
                stream, name=str(path), columns=columns, source=source, window=window, sort=sort
            )
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror or error}", code="trace.unreadable"
        ) from error


def read(
    stream: BinaryIO,
    *,
    name: str,
    columns: str = "",
    source: str = "",
    window: str = "",
    sort: bool = False,
) -> Trace:
    """`load` of an open binary file that can be rewound; `name` is what errors call it."""
    cut = _parse_window(window)
    mapping = parse_mapping(columns)
    with closing(rows.read(stream, mapping=mapping, name=name)) as chunks:
        trace = _joined(_selected(chunks, source, name), name=name, sort=sort)
    if not len(trace):
        if source:
            raise NotFoundError(f"{name}: no source {source!r}", code="trace.source")
        raise UserError(f"{name}: no rows", code="trace.empty")
    return _cut(trace, cut, window)


def _selected(chunks: Iterator[rows.Chunk], source: str, name: str) -> Iterator[rows.Chunk]:
    for chunk in chunks:
        if not source:
            yield chunk
        elif not chunk.sources:
            raise UserError(f"{name}: --source: the file has no column source", code="trace.column")
        else:
            kept = [index for index, found in enumerate(chunk.sources) if found == source]
            yield chunk.take(kept)


def _joined(chunks: Iterator[rows.Chunk], *, name: str, sort: bool) -> Trace:
    """All rows by arrival; several sources are merged, each a tenant of its own."""
    jobs: list[str] = []
    lines: list[int] = []
    sources: list[str] = []
    tenants: list[str] = []
    numbers: dict[str, list[Numbers]] = {key: [] for key in rows.NUMBERS}
    for chunk in chunks:
        jobs += chunk.jobs
        lines += chunk.lines
        tenants += chunk.tenants or [""] * len(chunk.jobs)
        sources += chunk.sources or [""] * len(chunk.jobs)
        for key in rows.NUMBERS:
            values = chunk.numbers.get(key)
            numbers[key].append(np.full(len(chunk.jobs), np.nan) if values is None else values)
    counts = {word: sources.count(word) for word in dict.fromkeys(sources)}
    several = len(counts) > 1
    if several:
        jobs = [f"{word}/{job}" for word, job in zip(sources, jobs, strict=True)]
    if counts != {"": len(jobs)}:
        tenants = [own or word for own, word in zip(tenants, sources, strict=True)]
    trace = Trace(
        name=name,
        jobs=jobs,
        lines=np.array(lines, dtype=np.int64),
        numbers={key: np.concatenate([*parts, np.empty(0)]) for key, parts in numbers.items()},
        tenants=tenants,
        words=counts,
    )
    _check_unique(trace)
    return _in_order(trace, sources if several else None, sort=sort)


def _check_unique(trace: Trace) -> None:
    first: dict[str, int] = {}
    for index, job in enumerate(trace.jobs):
        if first.setdefault(job, index) != index:
            raise UserError(
                f"{trace.where(index)}: job: {job!r} is already the job of line "
                f"{int(trace.lines[first[job]])}",
                code="trace.duplicate",
            )


def _in_order(trace: Trace, sources: Sequence[str] | None, *, sort: bool) -> Trace:
    arrivals = trace["arrival_s"]
    if not sort:
        for part in _parts(sources, len(trace)):
            back = np.flatnonzero(np.diff(arrivals[part]) < 0)
            if back.size:
                late, before = int(part[back[0] + 1]), int(part[back[0]])
                raise UserError(
                    f"{trace.where(late)}: arrival_s: {arrivals[late]:g} s is before the "
                    f"{arrivals[before]:g} s of line {int(trace.lines[before])}",
                    code="trace.unsorted",
                    hint="--sort takes the rows by their arrival",
                )
    order = np.argsort(arrivals, kind="stable")
    moved = int(np.count_nonzero(order != np.arange(len(order))))
    if not moved:
        return trace
    note = (
        f"merged {len(set(sources))} sources, each a tenant"
        if sources is not None
        else f"sorted: {moved} of {len(order)} rows stood elsewhere"
    )
    return replace(trace.take(order), notes=(*trace.notes, note))


def _parts(sources: Sequence[str] | None, count: int) -> Iterator[NDArray[np.int64]]:
    if sources is None:
        yield np.arange(count)
        return
    words = np.array(sources, dtype=object)
    for word in dict.fromkeys(sources):
        yield np.flatnonzero(words == word)


_Bound = tuple[str, float] | None


def _parse_window(text: str) -> tuple[_Bound, _Bound]:
    """'100:400' counts rows, '0h:580h' or '90s:' arrivals after the first. UserError else."""
    if not text:
        return None, None
    start, colon, end = text.partition(":")
    try:
        bounds = (_bound(start.strip()), _bound(end.strip()))
    except (QuantityError, ValueError) as error:
        raise _bad_window(text) from error
    kinds = {bound[0] for bound in bounds if bound is not None}
    if not colon or len(kinds) > 1:
        raise _bad_window(text)
    if None not in bounds and bounds[0][1] >= bounds[1][1]:  # type: ignore[index]
        raise _bad_window(text)
    return bounds


def _bound(text: str) -> _Bound:
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return "row", float(text)
    return "time", parse_duration_s(text)


def _bad_window(text: str) -> UserError:
    return UserError(
        f"--window: {text!r} is not START:END with START before END",
        hint="rows such as 0:300, or times after the first arrival such as 24h:48h",
    )


def _cut(trace: Trace, bounds: tuple[_Bound, _Bound], text: str) -> Trace:
    if bounds == (None, None):
        return trace
    kind = next(bound[0] for bound in bounds if bound is not None)
    places: Any = np.arange(len(trace)) if kind == "row" else trace.arrival_s
    start, end = (bound[1] if bound is not None else None for bound in bounds)
    kept = np.ones(len(trace), dtype=bool)
    if start is not None:
        kept &= places >= start
    if end is not None:
        kept &= places < end
    if not kept.any():
        raise UserError(
            f"{trace.name}: --window {text}: no rows there; the file has {len(trace)} rows over "
            f"{trace.arrival_s[-1] / 3600:.1f} h",
            code="trace.empty",
        )
    return trace.take(np.flatnonzero(kept))
