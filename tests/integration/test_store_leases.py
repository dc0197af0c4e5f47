from __future__ import annotations

import pytest

from rmux.errors import ConflictError
from rmux.store import leases

A = {"owner": "host:1", "ttl_s": 60.0, "now_s": 100.0, "boot_id": "boot-1"}
B = {**A, "owner": "host:2"}


def test_one_holder_at_a_time_and_the_other_is_told_who(store):
    with store.write() as conn:
        first = leases.take(conn, "group:g-1", **A)
        assert (first.owner, first.epoch) == ("host:1", 1)
        with pytest.raises(ConflictError, match="held by host:1") as caught:
            leases.take(conn, "group:g-1", **B)
        assert caught.value.code == "lease.held"
        assert caught.value.details["holder"] == "host:1"
        assert leases.take(conn, "group:g-2", **B).epoch == 1
        assert [lease.name for lease in leases.ls(conn)] == ["group:g-1", "group:g-2"]


def test_the_epoch_grows_with_every_change_of_holder_and_only_then(store):
    with store.write() as conn:
        lease = leases.take(conn, "placer", **A)
        assert leases.take(conn, "placer", **A).epoch == 1
        assert leases.release(conn, lease) is True
        assert leases.take(conn, "placer", **B).epoch == 2
        assert leases.release(conn, lease) is False
        assert leases.get(conn, "placer").owner == "host:2"


def test_an_expired_lease_is_free(store):
    with store.write() as conn:
        leases.take(conn, "placer", **{**A, "ttl_s": 0.0})
        assert leases.live(conn, "placer", now_s=100.0, boot_id="boot-1") is None
        assert leases.take(conn, "placer", **B).epoch == 2


def test_a_lost_lease_cannot_be_renewed(store):
    with store.write() as conn:
        lost = leases.take(conn, "placer", **{**A, "ttl_s": 0.0})
        taken = leases.take(conn, "placer", **B)
        with pytest.raises(ConflictError, match="host:2 has it") as caught:
            leases.renew(conn, lost, ttl_s=60.0, now_s=100.0)
        assert caught.value.code == "lease.lost"
        renewed = leases.renew(conn, taken, ttl_s=90.0, now_s=100.0)
        assert renewed.expires_s > taken.expires_s
        assert leases.get(conn, "placer") == renewed
        assert leases.live(conn, "placer", now_s=100.0, boot_id="boot-1") == renewed


def test_a_dead_holder_can_be_broken_but_not_its_successor(store):
    with store.write() as conn:
        leases.take(conn, "placer", **A)
        assert leases.break_dead(conn, "placer", "host:2") is False
        assert leases.break_dead(conn, "placer", "host:1") is True
        assert leases.get(conn, "placer") is None
        assert leases.take(conn, "placer", **B).epoch == 2


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_reboot_of_the_one_host_frees_every_lease(store):
    with store.write() as conn:
        leases.take(conn, "placer", **A)
        assert leases.live(conn, "placer", now_s=1.0, boot_id="boot-2") is None
        assert leases.take(conn, "placer", **{**B, "boot_id": "boot-2"}).epoch == 2


@pytest.mark.postgres
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_on_a_server_its_clock_judges_whatever_a_hosts_clock_says(store):
    with store.write() as conn:
        leases.take(conn, "placer", **A)
        with pytest.raises(ConflictError):
            leases.take(conn, "placer", **{**B, "now_s": 1e12, "boot_id": "another host"})
