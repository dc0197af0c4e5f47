"""A driver asked to give memory up: once per order, when nothing needs it, and whatever fails."""

from __future__ import annotations

import threading

import pytest

from rmux.events import EventType
from rmux.run.driver.engines import ShedKind, ShedReport
from rmux.run.driver.shed import Shedder
from rmux.run.messages import Permits


class Engines:
    def __init__(self):
        self.asked, self.in_use, self.error = [], False, None

    def shed(self, what, *, node):
        self.asked.append((what, node))
        if self.error is not None:
            raise self.error
        return None if self.in_use else ShedReport(what=what, freed_bytes=7)

    def spilled(self):
        return ("t0",) if any(what is ShedKind.SPILL for what, _ in self.asked) else ()


class Link:
    def __init__(self):
        self.told, self.news = [], threading.Semaphore(0)
        self.on_permits = self.shed = None

    def emit(self, kind, *, node, data):
        assert kind is EventType.MEMORY_SHED
        self.told.append((node, data["what"], data["freed_bytes"], data["error"]))
        self.news.release()


class Shed:
    def __init__(self):
        self.link, self.engines, self.may_spill = Link(), Engines(), True
        self.shedder = Shedder(self.link, self.engines, may_spill=self._may_spill)
        self.seen = threading.Semaphore(0)
        self.shedder.start()

    def _may_spill(self):
        answer = self.may_spill
        self.seen.release()
        return answer

    def order(self, what, number, gate="t0"):
        self.link.on_permits(gate, Permits(shed=what, shed_n=number))

    def wait(self):
        assert self.link.news.acquire(timeout=10)
        return self.link.told[-1]


@pytest.fixture
def job():
    made = Shed()
    yield made
    made.shedder.close()


def test_an_order_is_carried_out_once_however_often_it_is_repeated(job):
    for _ in range(3):
        job.order("caches", 5)
    assert job.wait() == ("t0", "caches", 7, "")
    job.order("caches", 5)
    job.order("caches", 6)
    job.wait()
    assert job.engines.asked == [(ShedKind.CACHES, "t0")] * 2
    sheds, spilled = job.link.shed()
    assert [(one.node, one.shed_n, one.freed_bytes) for one in sheds] == [("t0", 6, 7)]
    assert spilled == ()


def test_each_gate_has_orders_of_its_own(job):
    job.order("caches", 5, gate="r0")
    job.wait()
    job.order("caches", 5, gate="t0")
    assert job.wait()[0] == "t0"
    assert [node for _, node in job.engines.asked] == ["r0", "t0"]


def test_state_waits_to_be_spilled_until_nothing_is_about_to_read_it(job):
    job.may_spill = False
    job.order("spill", 1)
    for _ in range(3):
        assert job.seen.acquire(timeout=10)
    assert job.engines.asked == []
    job.may_spill = True
    assert job.wait() == ("t0", "spill", 7, "")
    assert job.link.shed()[1] == ("t0",)


def test_an_order_that_is_withdrawn_in_time_is_not_carried_out(job):
    job.may_spill = False
    job.order("spill", 1)
    assert job.seen.acquire(timeout=10)
    job.order("", 0)
    while job.seen.acquire(timeout=0.2):
        pass  # looks that were under way
    job.may_spill = True
    job.order("caches", 2)
    assert job.wait()[1] == "caches"
    assert job.engines.asked == [(ShedKind.CACHES, "t0")]


def test_what_is_in_use_is_tried_again_and_what_fails_is_told_once(job):
    job.engines.in_use = True
    job.order("spill", 1)
    for _ in range(3):
        assert job.seen.acquire(timeout=10)
    job.engines.in_use, job.engines.error = False, OSError("disk full")
    assert job.wait() == ("t0", "spill", 0, "disk full")
    job.engines.error = None
    job.order("caches", 2)
    assert job.wait() == ("t0", "caches", 7, "")


def test_an_unknown_order_of_a_newer_runner_is_answered(job):
    job.order("half", 1)
    node, what, freed_bytes, error = job.wait()
    assert (node, what, freed_bytes) == ("t0", "half", 0)
    assert "'half'" in error
    assert job.engines.asked == []
