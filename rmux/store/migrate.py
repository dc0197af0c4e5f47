"""Bring a store to this tool's schema: one write transaction, so all or nothing, one at a time."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from rmux.errors import StoreMissingError
from rmux.store.engine import Conn, Store, check_version, rmux_version
from rmux.store.schema import HEAD, REVISIONS, meta

_FOLDER = Path(__file__).parent / "migrations"


def migrate(store: Store) -> tuple[str | None, str]:
    """(schema before, schema now). StoreVersionError when the store is ahead of this tool."""
    before, writer = store.version()
    if before == HEAD:
        return before, HEAD
    with store.write() as conn:
        before, writer = _version(conn)
        if before is not None and before not in REVISIONS:
            check_version(before, writer)
        if before != HEAD:
            command.upgrade(config(conn), HEAD)
            _stamp_writer(conn)
    return before, HEAD


def open_for_migration(url: str, *, lock_timeout_s: float = 10.0) -> Store:
    """An existing store of any schema; StoreMissingError when there is none."""
    store = Store.unchecked(url, lock_timeout_s=lock_timeout_s, create=False)
    if store.version()[0] is None:
        store.close()
        raise StoreMissingError("the database has no rmux tables yet", hint="rmux store init")
    return store


def config(conn: Conn | None = None) -> Config:
    """Alembic's configuration, in memory: the scripts lie inside the package."""
    made = Config()
    made.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    if conn is not None:
        made.attributes["connection"] = conn
    return made


def _version(conn: Conn) -> tuple[str | None, str]:
    if not sa.inspect(conn).has_table("alembic_version"):
        return None, ""
    revision = conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return revision, conn.execute(sa.select(meta.c.written_by)).scalar() or ""


def _stamp_writer(conn: Conn) -> None:
    changed = conn.execute(meta.update().values(written_by=rmux_version()))
    if changed.rowcount == 0:
        conn.execute(meta.insert().values(id=1, revision=0, written_by=rmux_version()))
