"""What stands between a group's loops and the store: leases that are held, writes behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from rmux.clock import SystemClock, boot_id
from rmux.errors import ConflictError, UserError
from rmux.job import JobState
from rmux.run.controller.store_side import Placer
from rmux.run.journal import Journal
from rmux.run.lease import HeldLease, is_dead, owner_name
from rmux.run.processes import identify
from rmux.store import jobs, leases, pools, profiles
from rmux.store.engine import Store

HOST = "here"


@pytest.fixture
def dead_owner():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identify(child.pid)
    child.kill()
    child.wait()
    child.stdin.close()
    return f"{HOST} {process}"


def take_for(store, owner, *, ttl_s=60.0):
    with store.write() as conn:
        now_s = SystemClock().now_s()
        leases.take(conn, "x", owner=owner, ttl_s=ttl_s, now_s=now_s, boot_id=boot_id())


def test_a_dead_holder_on_this_host_is_not_waited_for(store, dead_owner):
    take_for(store, dead_owner)
    lease = HeldLease.take(store, "x", host=HOST, ttl_s=5)
    assert lease.epoch == 2
    lease.release()


def test_a_holder_that_lives_or_is_on_another_host_keeps_its_lease(store, dead_owner):
    assert is_dead(dead_owner, host=HOST)
    assert not is_dead(dead_owner, host="elsewhere")
    assert not is_dead(owner_name(HOST), host=HOST)
    assert not is_dead("somebody", host=HOST)
    take_for(store, dead_owner.replace(HOST, "elsewhere"))
    with pytest.raises(ConflictError, match="is held by elsewhere"):
        HeldLease.take(store, "x", host=HOST, ttl_s=5)


def test_a_lease_is_renewed_behind_and_safe_for_two_thirds_of_its_time_without_that(store):
    lease = HeldLease.take(store, "x", host=HOST, ttl_s=0.6)
    time.sleep(0.7)
    assert lease.is_safe, "renewed meanwhile"
    with store.write():  # nobody can renew now
        deadline_s = time.monotonic() + 0.6
        while lease.is_safe:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    lease.release()


def test_a_lease_that_another_took_is_lost_for_good(store):
    lease = HeldLease.take(store, "x", host=HOST, ttl_s=0.3)
    with store.write() as conn:
        leases.break_dead(conn, "x", owner_name(HOST))
    take_for(store, "another")
    deadline_s = time.monotonic() + 5
    while not lease.is_lost and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert lease.is_lost
    assert not lease.is_safe
    lease.release()
    assert names(store) == ["x"], "the other's lease stays"


@pytest.fixture
def impatient(store_url):
    """A store that gives up on a lock at once."""
    opened = Store.open(store_url, lock_timeout_s=0.05)
    yield opened
    opened.close()


def leased(name):
    def operation(conn):
        leases.take(
            conn, name, owner=name, ttl_s=60, now_s=SystemClock().now_s(), boot_id=boot_id()
        )

    return operation


def names(store):
    with store.read() as conn:
        return [lease.name for lease in leases.ls(conn)]


def test_a_journal_waits_for_a_locked_store_and_keeps_its_order(store, impatient):
    stored = []
    journal = Journal(impatient, on_stored=stored.append)
    with store.write():
        for number, name in enumerate("abc", start=1):
            journal.put(number, [leased(name)])
        time.sleep(0.2)
        assert stored == []
    assert journal.close(timeout_s=5)
    assert stored[-1] == 3
    assert names(store) == ["a", "b", "c"]


def test_a_write_that_the_store_refuses_takes_no_other_with_it(store):
    def refused(conn):
        raise UserError("no")

    journal = Journal(store)
    journal.put(1, [leased("a"), refused, leased("b")])
    journal.put(2, [leased("c")])
    assert journal.close(timeout_s=5)
    assert names(store) == ["a", "b", "c"]


def test_closing_a_journal_does_not_wait_for_ever(store, impatient):
    journal = Journal(impatient)
    with store.write():
        journal.put(1, [leased("a")])
        assert not journal.close(timeout_s=0.2)
    for thread in threading.enumerate():
        if thread.name == "journal":
            thread.join(5)
    assert names(store) in ([], ["a"])


def test_a_controller_that_ends_places_once_more_what_its_last_job_made_room_for(store, samples):
    with store.write() as conn:
        pools.save(conn, samples.cluster(rollout=1, train=1))
        profiles.save(conn, samples.profile())
        jobs.insert(conn, samples.job(profile="p-1"))
    Placer(store, host=HOST, every_s=1000).close(last=False)
    with store.read() as conn:
        assert jobs.get(conn, "j-000001").state is JobState.PENDING
    Placer(store, host=HOST, every_s=1000).close(last=True)
    with store.read() as conn:
        assert jobs.get(conn, "j-000001").state is JobState.PLACED
