from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from rmux.errors import StoreMissingError, StoreVersionError, UnreachableError, UserError
from rmux.store import jobs, revision
from rmux.store.engine import Store, masked
from rmux.store.migrate import migrate, open_for_migration
from rmux.store.schema import HEAD, REVISIONS


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "rmux.db"
    Store.create(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def path(made, tmp_path):
    copy = tmp_path / "rmux.db"
    copy.write_bytes(made.read_bytes())
    return copy


@pytest.fixture
def store(path):
    opened = Store.open(f"sqlite:///{path}", lock_timeout_s=0.05)
    yield opened
    opened.close()


def test_creating_twice_is_opening_and_the_file_is_private(tmp_path):
    url = f"sqlite:///{tmp_path}/new/rmux.db"
    Store.create(url).close()
    again = Store.create(url)
    assert again.version()[0] == HEAD
    again.close()
    assert (tmp_path / "new" / "rmux.db").stat().st_mode & 0o777 == 0o600


def test_opening_what_is_not_there_makes_nothing(tmp_path):
    with pytest.raises(StoreMissingError, match="no store at"):
        Store.open(f"sqlite:///{tmp_path}/rmux.db")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_a_store_that_does_not_exist_yet(tmp_path):
    (tmp_path / "rmux.db").touch()
    with pytest.raises(StoreMissingError, match="no rmux tables"):
        Store.open(f"sqlite:///{tmp_path}/rmux.db")


@pytest.mark.parametrize(
    "url", ["", "mysql://host/db", "sqlite://", "sqlite:///:memory:", "postgresql://h/db"]
)
def test_an_url_that_is_not_a_store_names_those_that_are(url):
    with pytest.raises(UserError, match="store") as caught:
        Store.open(url)
    assert "postgresql+psycopg://" in caught.value.hint


def test_a_file_that_is_no_database_is_reported_not_overwritten(tmp_path):
    path = tmp_path / "rmux.db"
    path.write_text("precious notes, not a database at all\n" * 100)
    before = path.read_bytes()
    for how in (Store.open, Store.create):
        with pytest.raises(UnreachableError) as caught:
            how(f"sqlite:///{path}")
        assert caught.value.code == "store.corrupt"
    assert path.read_bytes() == before


def test_a_store_ahead_of_the_tool_names_both_versions(path):
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '0999'")
        raw.execute("UPDATE meta SET written_by = '9.9.9'")
    for how in (Store.open, Store.create):
        with pytest.raises(StoreVersionError, match=r"0999 \(written by rmux 9.9.9\)") as caught:
            how(f"sqlite:///{path}")
        assert HEAD in caught.value.message


def test_a_store_behind_the_tool_says_how_to_bring_it_up(path, monkeypatch):
    monkeypatch.setattr("rmux.store.engine.HEAD", "0998")
    with pytest.raises(StoreVersionError, match=rf"schema {HEAD}; .* needs 0998") as caught:
        Store.open(f"sqlite:///{path}")
    assert caught.value.hint == "rmux store migrate"


def test_migrating_what_is_up_to_date_changes_nothing(path):
    opened = open_for_migration(f"sqlite:///{path}")
    assert migrate(opened) == (HEAD, HEAD)
    opened.close()


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    from alembic import command

    def break_after(config, head):
        config.attributes["connection"].exec_driver_sql("CREATE TABLE half (a INTEGER)")
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(command, "upgrade", break_after)
    with pytest.raises(RuntimeError):
        Store.create(f"sqlite:///{tmp_path}/rmux.db")
    with sqlite3.connect(tmp_path / "rmux.db") as raw:
        assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_the_known_revisions_are_the_migration_scripts():
    from alembic.script import ScriptDirectory

    from rmux.store.migrate import config

    scripts = ScriptDirectory.from_config(config())
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS


def test_the_migrations_make_the_tables_that_the_code_uses(store):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from rmux.store.schema import metadata

    with store.read() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_an_error_inside_a_write_undoes_all_of_it(store, samples):
    def crash_between_two_changes():
        with store.write() as conn:
            jobs.insert(conn, samples.job())
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        crash_between_two_changes()
    with store.read() as conn:
        assert jobs.ls(conn) == []


def test_a_read_sees_one_moment_while_others_write(store, samples):
    with store.read() as reading:
        assert revision.current(reading) == 0
        with store.write() as writing:
            jobs.insert(writing, samples.job())
        assert revision.current(reading) == 0
    with store.read() as reading:
        assert revision.current(reading) == 1


HOLD = """
import sqlite3, sys
raw = sqlite3.connect(sys.argv[1], isolation_level=None)
raw.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_locked_store_names_the_process_that_holds_it(store, path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(UnreachableError, match=r"store .*busy for 0.05 s") as caught:  # noqa: SIM117
            with store.write():
                pytest.fail("the lock is held")
        assert caught.value.code == "store.locked"
        assert caught.value.details["holder"]["pid"] == child.pid
        assert f"pid {child.pid} on {os.uname().nodename}" in caught.value.message
        with store.read() as conn:
            assert revision.current(conn) == 0
    finally:
        child.communicate("")


def test_a_password_is_never_shown():
    assert "secret" not in masked("postgresql+psycopg://rmux:secret@db/rmux")


def test_a_server_that_does_not_answer_is_unreachable():
    with pytest.raises(UnreachableError, match="does not answer") as caught:
        Store.open("postgresql+psycopg://rmux:secret@127.0.0.1:1/rmux")
    assert "secret" not in str(caught.value)
