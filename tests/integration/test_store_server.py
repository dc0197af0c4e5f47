"""What is Postgres's own: its lock, its holder, its versions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rmux.errors import UnreachableError
from rmux.store import jobs, status
from rmux.store.engine import Store
from rmux.store.schema import HEAD, metadata

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_locked_server_names_its_holder_and_readers_go_on(store, samples):
    hasty = Store.open(store.url, lock_timeout_s=0.1)
    with store.write():
        with pytest.raises(UnreachableError, match="writer is") as caught:  # noqa: SIM117
            with hasty.write():
                pytest.fail("the lock is held")
        assert caught.value.code == "store.locked"
        assert caught.value.details["holder"]["pid"] > 0
        with hasty.read() as conn:
            assert jobs.ls(conn) == []
    hasty.close()


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_server_can_be_created_by_several_at_once(store):
    with store.write() as conn:
        metadata.drop_all(conn)
        conn.exec_driver_sql("DROP TABLE alembic_version")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(Store.create, [store.url] * 4))
    assert [one.version()[0] for one in made] == [HEAD] * 4
    for one in made:
        one.close()


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_nothing_can_be_written_in_a_read(store, samples):
    from sqlalchemy.exc import DBAPIError

    with pytest.raises((DBAPIError, UnreachableError)), store.read() as conn:
        jobs.insert(conn, samples.job())


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_server_tells_its_size_and_has_no_log_file(store, samples):
    with store.write() as conn:
        jobs.insert(conn, samples.job())
    seen = status.read(store, now_s=0.0, boot_id="boot")
    assert (seen.backend, seen.wal_bytes, seen.num_active_jobs) == ("postgresql", None, 1)
    assert seen.size_bytes > 2**20
