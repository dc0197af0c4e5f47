"""The driver logs of a job: one file per attempt below its run folder."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rmux.cli.documents_jobs import LogLine
from rmux.clock import Clock, SystemClock
from rmux.ids import JobId

if TYPE_CHECKING:
    from rmux.store.engine import Store

LOG_NAME = "driver.log"
_POLL_S = 0.1
_STATE_EVERY = 5
"""Looks at the file per look at the job's state."""


class Source:
    """Where a job's logs lie, and whether more may come."""

    def __init__(self, store: Store, job_id: JobId, *, runs: Path) -> None:
        self._store, self.job_id, self._runs = store, job_id, runs

    def attempts(self) -> list[tuple[int, Path]]:
        """(attempt, file), first attempt first."""
        from rmux.store import jobs

        with self._store.read() as conn:
            job = jobs.get(conn, self.job_id)
        folder = Path(job.run_dir) if job.run_dir else self._runs / self.job_id
        return sorted((attempt_of(path, folder), path) for path in folder.rglob(LOG_NAME))

    def newest(self, attempt: int | None = None) -> tuple[int, Path] | None:
        found = [one for one in self.attempts() if attempt in (None, one[0])]
        return found[-1] if found else None

    def has_ended(self) -> bool:
        from rmux.store import jobs

        with self._store.read() as conn:
            return jobs.get(conn, self.job_id).state.is_terminal


def attempt_of(path: Path, folder: Path) -> int:
    """The number in the nearest folder's name that has one, 'attempt-2'; 1 without any."""
    for part in reversed(path.relative_to(folder).parts[:-1]):
        match = re.search(r"(\d+)$", part)
        if match is not None:
            return int(match[1])
    return 1


def read(
    source: Source,
    *,
    follow: bool,
    tail: int | None = None,
    attempt: int | None = None,
    clock: Clock | None = None,
) -> Iterator[LogLine]:
    """Lines of the newest (or given) attempt; with `follow` also what comes, until the job ends.

    A new attempt that begins while following is followed in turn, unless one was named.
    """
    clock = clock or SystemClock()
    current = source.newest(attempt)
    while current is None and follow and not source.has_ended():
        clock.sleep_s(_POLL_S * _STATE_EVERY)
        current = source.newest(attempt)
    if current is None:
        return
    while current is not None:
        number, path = current
        current = None
        with path.open("rb") as file:
            yield from _lines(_last(file, tail), source, number)
            if follow:
                yield from _lines(_coming(file, source, clock), source, number)
        latest = source.newest() if follow and attempt is None else None
        if latest is not None and latest[0] > number:
            current, tail = latest, None


def _last(file: BinaryIO, count: int | None) -> Iterator[bytes]:
    if count is None:
        return iter(file)
    return iter(deque(file, maxlen=count))


def _coming(file: BinaryIO, source: Source, clock: Clock) -> Iterator[bytes]:
    """Whole lines as they are written; the last one even if it has no end."""
    begun = b""
    looks = 0
    while True:
        chunk = file.readline()
        if chunk:
            begun += chunk
            if begun.endswith(b"\n"):
                yield begun
                begun = b""
            continue
        looks += 1
        if looks % _STATE_EVERY == 0 and _is_over(source, file):
            break
        clock.sleep_s(_POLL_S)
    if begun:
        yield begun


def _is_over(source: Source, file: BinaryIO) -> bool:
    """Nothing more comes: the job ended or a later attempt began, and the file is read up."""
    newest = source.newest()
    moved_on = newest is not None and newest[1] != Path(file.name)
    return (moved_on or source.has_ended()) and not file.peek(1)  # type: ignore[attr-defined]


def _lines(raw: Iterator[bytes], source: Source, attempt: int) -> Iterator[LogLine]:
    for line in raw:
        text = line.decode(errors="replace").rstrip("\r\n")
        yield LogLine(job=source.job_id, attempt=attempt, line=text)
