"""The journal: every event once, in one order, followed from a cursor."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from rmux.clock import Clock
from rmux.errors import UnreachableError
from rmux.events import EventType, PhaseEvent
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Phase
from rmux.store.engine import Conn, Store
from rmux.store.schema import events


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one look at the journal found, and where the next one goes on."""

    events: tuple[PhaseEvent, ...] = ()
    seq: int
    gap: str = ""
    """Why the store could not be read this time; the next look may find it back."""


def append(conn: Conn, new: Iterable[PhaseEvent]) -> int:
    """Store events in the given order; one whose (source, source_n) is stored is left out.

    Returns how many were new.
    """
    rows = [_row(event) for event in new]
    if not rows:
        return 0
    query = _insert(conn, index_elements=["source", "source_n"])
    done = conn.execute(query, rows, execution_options={"preserve_rowcount": True})
    return int(done.rowcount)


def read(
    conn: Conn,
    *,
    group: str | None = None,
    job: str | None = None,
    types: Collection[EventType] | None = None,
    after_seq: int = 0,
    limit: int = 1000,
) -> list[PhaseEvent]:
    """The oldest `limit` events behind the cursor."""
    query = events.select().where(events.c.seq > after_seq, *_matching(group, job, types))
    return [_event(row) for row in conn.execute(query.order_by(events.c.seq).limit(limit))]


def latest(
    conn: Conn,
    *,
    group: str | None = None,
    job: str | None = None,
    types: Collection[EventType] | None = None,
    since: datetime | None = None,
    limit: int = 1000,
) -> list[PhaseEvent]:
    """The newest `limit` events, oldest of them first."""
    query = events.select().where(*_matching(group, job, types))
    if since is not None:
        query = query.where(events.c.at >= since)
    rows = conn.execute(query.order_by(events.c.seq.desc()).limit(limit)).all()
    return [_event(row) for row in reversed(rows)]


def last_seq(conn: Conn, group: str | None = None) -> int:
    """Cursor behind which nothing is stored yet; 0 for an empty journal."""
    query = sa.select(sa.func.max(events.c.seq))
    if group is not None:
        query = query.where(events.c.group_id == group)
    return int(conn.execute(query).scalar() or 0)


def last_source_n(conn: Conn, source: str) -> int:
    """The highest number stored of what this source announced; 0 for none."""
    query = sa.select(sa.func.max(events.c.source_n)).where(events.c.source == source)
    return int(conn.execute(query).scalar() or 0)


def follow(
    store: Store,
    *,
    clock: Clock,
    group: str | None = None,
    job: str | None = None,
    types: Collection[EventType] | None = None,
    after_seq: int = 0,
    poll_s: float = 0.1,
) -> Iterator[News]:
    """Look at the journal every `poll_s` for ever, and yield after every look, news or not.

    A store that cannot be read yields a `gap` and is tried again from the same cursor, so nothing
    is lost or told twice. The one who iterates decides when it is enough.
    """
    while True:
        try:
            with store.read() as conn:
                found = read(conn, group=group, job=job, types=types, after_seq=after_seq)
        except UnreachableError as error:
            yield News(seq=after_seq, gap=error.message)
            clock.sleep_s(max(poll_s, 1.0))
            continue
        after_seq = found[-1].seq if found else after_seq
        yield News(events=tuple(found), seq=after_seq)
        if not found:
            clock.sleep_s(poll_s)


def _insert(conn: Conn, *, index_elements: list[str]) -> sa.Insert:
    if conn.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(events).on_conflict_do_nothing(index_elements=index_elements)
    from sqlalchemy.dialects.postgresql import insert as postgres_insert

    return postgres_insert(events).on_conflict_do_nothing(index_elements=index_elements)


def _matching(
    group: str | None, job: str | None, types: Collection[EventType] | None
) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if group is not None:
        found.append(events.c.group_id == group)
    if job is not None:
        found.append(events.c.job_id == job)
    # Kinds that this version does not know are not for it to read.
    found.append(events.c.type.in_([str(kind) for kind in types or EventType]))
    return found


_FIELDS = tuple(field.name for field in dataclasses.fields(PhaseEvent) if field.name != "seq")


def _row(event: PhaseEvent) -> dict[str, Any]:
    row = {name: getattr(event, name) for name in _FIELDS}
    row["type"] = event.type.value
    row["phase"] = None if event.phase is None else event.phase.value
    row["data"] = dict(event.data)
    return row


def _event(row: Any) -> PhaseEvent:
    return PhaseEvent(
        seq=row.seq,
        type=EventType(row.type),
        at=row.at,
        at_s=row.at_s,
        source=row.source,
        source_n=row.source_n,
        group_id=None if row.group_id is None else GroupId(row.group_id),
        job_id=None if row.job_id is None else JobId(row.job_id),
        iteration=row.iteration,
        phase=None if row.phase is None else Phase(row.phase),
        node=None if row.node is None else NodeId(row.node),
        device=row.device,
        data=row.data,
    )
