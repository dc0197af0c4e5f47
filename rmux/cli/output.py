"""stdout carries the answer and nothing else; everything said besides goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from rmux.cli.documents import Document, Record

_GAP = "  "
_STYLES = {
    "running": "green",
    "succeeded": "green",
    "ok": "green",
    "pending": "yellow",
    "paused": "yellow",
    "starting": "yellow",
    "stopping": "yellow",
    "warn": "yellow",
    "failed": "red",
    "lost": "red",
    "fail": "red",
    "cancelled": "dim",
    "skip": "dim",
}


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


class PipeClosed(BaseException):
    """The reader of stdout is gone: it has seen enough, so the command ends with success."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    wide: bool = False
    """Only shown under `-o wide`."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text for people; None prints as '-'. Never truncated, coloured only on a terminal."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[object]] = field(default_factory=tuple)

    def lines(self, *, wide: bool = False, color: bool = False) -> Iterator[str]:
        columns = [Column(item) if isinstance(item, str) else item for item in self.columns]
        shown = [index for index, column in enumerate(columns) if wide or not column.wide]
        head = [column.title for column in columns]
        body = [["-" if cell is None else str(cell) for cell in row] for row in self.rows]
        widths = {index: max([_width(row[index]) for row in body], default=0) for index in shown}
        for number, row in enumerate([head, *body]):
            cells = []
            for index in shown:
                text, width = row[index], max(widths[index], _width(head[index]))
                pad = " " * (width - _width(text))
                text = _styled(text) if color and number else text
                cells.append(pad + text if columns[index].right else text + pad)
            yield _GAP.join(cells).rstrip()


class Output:
    """Where a command says things: `emit` and `line` for the answer, `note` and `warn` besides."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.format = Format.TABLE
        self.color = "auto"
        self.quiet = False

    @property
    def is_json(self) -> bool:
        return self.format in (Format.JSON, Format.JSONL)

    @property
    def is_terminal(self) -> bool:
        return self.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def has_color(self) -> bool:
        """--color, else CLICOLOR_FORCE and NO_COLOR, else whether stdout is a terminal."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        forced = os.environ.get("CLICOLOR_FORCE", "0")
        return self.is_terminal or forced not in ("", "0")

    def emit(
        self,
        document: Document,
        *,
        table: Table | Callable[[], Table] | None = None,
        text: str | Callable[[], str] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        """The whole answer, in the format asked for.

        `names` are the ids of `-o name`; `text` (or `table`) is what people read.
        """
        if self.format is Format.JSON:
            self.print(document.to_json(indent=2))
        elif self.format is Format.JSONL:
            for record in document.records():
                self.print(record.to_json())
        elif self.format is Format.NAME:
            for name in names:
                self.print(name)
        else:
            if text is not None:
                self.print(text() if callable(text) else text)
            if table is not None:
                self.table(table() if callable(table) else table)
        self.flush()

    def line(self, record: Record, *, text: str | Callable[[], str]) -> None:
        """One line of a stream: JSON under json and jsonl, else `text`; flushed at once."""
        if self.is_json:
            self.print(record.to_json())
        else:
            self.print(text() if callable(text) else text)
        self.flush()

    def table(self, table: Table) -> None:
        for line in table.lines(wide=self.format is Format.WIDE, color=self.has_color):
            self.print(line)

    def print(self, text: str) -> None:
        """Text and a newline on stdout. Raises PipeClosed when nobody reads any more."""
        try:
            self.stdout.write(text + "\n")
        except BrokenPipeError:
            raise PipeClosed from None

    def flush(self) -> None:
        try:
            self.stdout.flush()
        except BrokenPipeError:
            raise PipeClosed from None

    def note(self, text: str) -> None:
        """Progress, counts, what to do next: on stderr, unless --quiet."""
        if not self.quiet:
            self.say(text)

    def warn(self, text: str) -> None:
        if not self.quiet:
            self.say(f"rmux: warning: {text}")

    def say(self, text: str) -> None:
        """A line on stderr whatever the flags; a stderr that is gone is no error."""
        try:
            self.stderr.write(text + "\n")
            self.stderr.flush()
        except (BrokenPipeError, ValueError):
            pass

    def console(self) -> Console:
        """A rich console on stdout, for live views; as wide as the terminal, else unbounded."""
        from rich.console import Console

        return Console(
            file=self.stdout,
            force_terminal=self.is_terminal,
            color_system="standard" if self.has_color else None,
            no_color=not self.has_color,
            width=None if self.is_terminal else 10**6,
            highlight=False,
            markup=False,
            emoji=False,
        )


@contextmanager
def claimed_stdout() -> Iterator[TextIO]:
    """The caller's stdout, for the answer alone.

    While it is held, file descriptor 1 leads to stderr, so whatever libraries, C code and child
    processes print lands there. A stdout that was replaced by an object is replaced in turn.
    """
    usual = cast("TextIO", sys.stdout)
    if usual is not sys.__stdout__ or not _is_fd(usual, 1):
        sys.stdout = sys.stderr
        try:
            yield usual
        finally:
            sys.stdout = usual
        return
    usual.flush()
    real = os.fdopen(
        os.dup(1),
        "w",
        buffering=1 if usual.isatty() else -1,
        encoding=usual.encoding,
        errors="backslashreplace",
    )
    os.dup2(2, 1)
    try:
        yield real
    finally:
        usual.flush()
        os.dup2(real.fileno(), 1)
        close_quietly(real)


def close_quietly(stream: TextIO) -> None:
    """Close a stream whose reader may be gone."""
    try:
        stream.close()
    except BrokenPipeError:
        pass


def _is_fd(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):
        return False


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _styled(text: str) -> str:
    style = _STYLES.get(text.lower())
    if style is None:
        return text
    from rich.style import Style

    return Style.parse(style).render(text)
