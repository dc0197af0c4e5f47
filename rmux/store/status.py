"""The store about itself."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from rmux.store import groups, jobs, leases
from rmux.store.engine import Conn, Store
from rmux.store.schema import events


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    backend: str
    schema_revision: str
    written_by: str
    revision: int
    size_bytes: int
    wal_bytes: int | None
    """Of SQLite's write-ahead log; None on a server."""
    num_jobs: int
    num_active_jobs: int
    num_groups: int
    num_events: int
    leases: tuple[tuple[leases.Lease, bool], ...]
    """Each with whether its holder still has it."""


def read(store: Store, *, now_s: float, boot_id: str) -> Status:
    schema_revision, writer = store.version()
    with store.read() as conn:
        held = leases.ls(conn)
        live = {
            lease.name
            for lease in held
            if leases.live(conn, lease.name, now_s=now_s, boot_id=boot_id) is not None
        }
        num_jobs = jobs.count(conn)
        return Status(
            backend=conn.dialect.name,
            schema_revision=schema_revision or "",
            written_by=writer,
            revision=groups.revision(conn),
            size_bytes=_size_bytes(store, conn),
            wal_bytes=_wal_bytes(store),
            num_jobs=num_jobs,
            num_active_jobs=num_jobs - jobs.count(conn, states=jobs.ENDED),
            num_groups=len(groups.ls(conn)),
            num_events=int(
                conn.execute(sa.select(sa.func.count()).select_from(events)).scalar_one()
            ),
            leases=tuple((lease, lease.name in live) for lease in held),
        )


def _size_bytes(store: Store, conn: Conn) -> int:
    if store.path is not None:
        return store.path.stat().st_size
    query = sa.text("SELECT pg_database_size(current_database())")
    return int(conn.execute(query).scalar_one())


def _wal_bytes(store: Store) -> int | None:
    if store.path is None:
        return None
    wal = store.path.with_name(store.path.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0
