"""Opening the store and its two kinds of transaction.

A write begins with the write lock in hand (BEGIN IMMEDIATE on SQLite, one advisory lock on
Postgres), so that what it reads cannot change before it writes: without that, two processes read
the same free node and both take it, and no error tells. A read is one consistent snapshot and
never waits for a writer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection as Conn
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from rmux.errors import (
    BackendError,
    StoreMissingError,
    StoreVersionError,
    UnreachableError,
    UserError,
)
from rmux.store import holder
from rmux.store.disk import check_local, make_private_file
from rmux.store.documents import to_json
from rmux.store.schema import HEAD, REVISIONS

__all__ = ["Conn", "Store"]

WRITE_LOCK = 0x726D7578
"""Advisory lock of every write transaction on Postgres ('rmux')."""

_LOCKED = re.compile(r"database( table)? is locked|lock timeout|LockNotAvailable", re.IGNORECASE)


class Store:
    """The truth about pools, jobs, profiles, groups, leases and events.

    One per process; threads may share it. Made by `Store.create` or `Store.open`.
    """

    def __init__(self, url: str, engine: Engine, *, lock_timeout_s: float) -> None:
        self.url = url
        self.engine = engine
        self.lock_timeout_s = lock_timeout_s

    @classmethod
    def create(cls, url: str, *, lock_timeout_s: float = 10.0) -> Store:
        """Open the store, made or brought to this tool's schema first when need be.

        Idempotent, and safe against others doing the same at once. StoreVersionError when the
        store is ahead of this tool, UnreachableError when it is locked or does not answer.
        """
        from rmux.store.migrate import migrate

        store = cls.unchecked(url, lock_timeout_s=lock_timeout_s, create=True)
        try:
            migrate(store)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, url: str, *, lock_timeout_s: float = 10.0) -> Store:
        """Open a store that exists and has this tool's schema.

        StoreMissingError when there is none, StoreVersionError when its schema is older or newer,
        UnreachableError when it is locked or does not answer.
        """
        store = cls.unchecked(url, lock_timeout_s=lock_timeout_s, create=False)
        try:
            check_version(*store.version())
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def schema_of(cls, url: str, *, lock_timeout_s: float = 10.0) -> str | None:
        """The schema of whatever lies at `url`; None when there is no store yet."""
        try:
            store = cls.unchecked(url, lock_timeout_s=lock_timeout_s, create=False)
        except StoreMissingError:
            return None
        try:
            return store.version()[0]
        finally:
            store.close()

    @classmethod
    def unchecked(cls, url: str, *, lock_timeout_s: float, create: bool) -> Store:
        """A store of whatever schema, for those who are about to look at it or change it."""
        parsed = _parse(url)
        if parsed.get_backend_name() == "sqlite":
            path = Path(parsed.database or "")
            check_local(path)
            if create:
                make_private_file(path)
            elif not path.exists():
                raise StoreMissingError(
                    f"no store at {path}", hint="rmux store init", details={"url": masked(url)}
                )
        return cls(url, _engine(parsed, lock_timeout_s), lock_timeout_s=lock_timeout_s)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def path(self) -> Path | None:
        """The database file; None for a server."""
        return Path(self.engine.url.database or "") if self.is_sqlite else None

    def version(self) -> tuple[str | None, str]:
        """(schema revision or None when the database is empty, the rmux that wrote it last)."""
        with self.read() as conn:
            if not sa.inspect(conn).has_table("alembic_version"):
                return None, ""
            revision = conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
            writer = conn.execute(sa.text("SELECT written_by FROM meta")).scalar()
            return revision, writer or ""

    @contextmanager
    def read(self) -> Iterator[Conn]:
        """One consistent snapshot; nothing may be written through it."""
        with self._transaction(write=False) as conn:
            yield conn

    @contextmanager
    def write(self, *, dry_run: bool = False) -> Iterator[Conn]:
        """The write lock from the first statement; commits on leaving, rolls back on an error.

        With `dry_run` it rolls back anyway. UnreachableError (`store.locked`) when the lock is
        not free within the lock timeout.
        """
        with self._transaction(write=True) as conn:
            yield conn
            if dry_run:
                conn.rollback()

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Conn]:
        try:
            with self.engine.connect() as plain:
                conn = plain.execution_options(rmux_write=write)
                conn.begin()
                yield conn
                conn.commit()
        except DBAPIError as error:
            raise self._translated(error) from error

    def _translated(self, error: DBAPIError) -> Exception:
        if isinstance(error, sa.exc.IntegrityError | sa.exc.ProgrammingError | sa.exc.DataError):
            return error
        cause = f"{type(error.orig).__name__}: {error.orig}".strip()
        if _LOCKED.search(cause):
            found = holder.find(self)
            return UnreachableError(
                f"store {masked(self.url)} busy for {self.lock_timeout_s:g} s; "
                f"{found.sentence if found else 'its writer is not known'}",
                code="store.locked",
                hint="try again, or --lock-timeout 60s",
                details={"url": masked(self.url), "holder": found.facts if found else None},
            )
        if "not a database" in cause or "malformed" in cause:
            return UnreachableError(
                f"{masked(self.url)} is not a database that can be read ({cause})",
                code="store.corrupt",
                hint="restore it from a backup, or name another with --store",
                details={"url": masked(self.url)},
            )
        return UnreachableError(
            f"store {masked(self.url)} does not answer ({cause.splitlines()[0]})",
            hint="is its server or file system up? rmux store status",
            details={"url": masked(self.url)},
        )


def check_version(found: str | None, writer: str) -> None:
    """StoreVersionError unless the schema is the one this rmux works with."""
    if found == HEAD:
        return
    if found is None:
        raise StoreMissingError("the database has no rmux tables yet", hint="rmux store init")
    ours = rmux_version()
    details = {"store_schema": found, "tool_schema": HEAD, "written_by": writer, "tool": ours}
    if found in REVISIONS:
        raise StoreVersionError(
            f"store is at schema {found}; this is rmux {ours}, which needs {HEAD}",
            code="store.older",
            hint="rmux store migrate",
            details=details,
        )
    raise StoreVersionError(
        f"store is at schema {found} (written by rmux {writer}); "
        f"this is rmux {ours}, which knows {HEAD}",
        code="store.newer",
        hint=f"upgrade rmux to {writer} or newer",
        details=details,
    )


def rmux_version() -> str:
    import rmux

    return str(getattr(rmux, "__version__", "unknown"))


def masked(url: str) -> str:
    """The URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


def _parse(url: str) -> sa.URL:
    example = "sqlite:////var/lib/rmux/rmux.db or postgresql+psycopg://user@host/rmux"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UserError(
            f"{url!r} is not a store URL", code="store.url", hint=f"write {example}"
        ) from error
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.drivername == "postgresql+psycopg":
        return parsed
    raise UserError(
        f"{masked(url)!r} is not a kind of store rmux has",
        code="store.url",
        hint=f"write {example}",
    )


def _engine(url: sa.URL, lock_timeout_s: float) -> Engine:
    lock_timeout_ms = max(1, math.ceil(lock_timeout_s * 1e3))
    sqlite = url.get_backend_name() == "sqlite"
    connect_args: dict[str, Any] = (
        {"timeout": lock_timeout_s}
        if sqlite
        else {"connect_timeout": 10, "application_name": holder.application_name()}
    )
    try:
        engine = sa.create_engine(
            url, connect_args=connect_args, pool_pre_ping=not sqlite, json_serializer=to_json
        )
    except (ImportError, NoSuchModuleError) as error:
        raise BackendError(
            "no Postgres driver is installed",
            code="backend.psycopg",
            hint="pip install 'rmux[postgres]'",
        ) from error
    event.listen(engine, "connect", _connect_hook(sqlite, lock_timeout_ms))
    event.listen(engine, "begin", begin)
    return engine


def _connect_hook(sqlite: bool, lock_timeout_ms: int) -> Any:
    def prepare_sqlite(dbapi: Any, _record: Any) -> None:
        # The driver's own transactions start only at the first write: what was read before is
        # outside them. So the driver is told to leave them alone, and `begin` opens each.
        dbapi.isolation_level = None
        dbapi.execute(f"PRAGMA busy_timeout={lock_timeout_ms}")
        if dbapi.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            dbapi.execute("PRAGMA journal_mode=WAL")
        dbapi.execute("PRAGMA synchronous=NORMAL")
        dbapi.execute("PRAGMA foreign_keys=ON")

    def prepare_postgres(dbapi: Any, _record: Any) -> None:
        with dbapi.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {lock_timeout_ms}")
            cursor.execute("SET timezone = 'UTC'")
        dbapi.commit()

    return prepare_sqlite if sqlite else prepare_postgres


def begin(conn: Conn) -> None:
    """Runs at the start of every transaction of every engine of this module."""
    write = conn.get_execution_options().get("rmux_write", False)
    if conn.dialect.name == "sqlite":
        conn.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
    elif write:
        # Read committed: each statement after the lock sees what the last holder committed.
        conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
    else:
        conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
