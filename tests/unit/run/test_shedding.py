"""A runner short of memory: what it asks of which driver, what it tells, whom it ends."""

from __future__ import annotations

import pytest

from rmux.events import EventType
from rmux.run.host_memory import HostMemory
from rmux.run.messages import DriverOrder, DriverReport, DriverStatus
from rmux.run.runner.memory import Resident
from rmux.run.runner.pressure import Policy
from rmux.run.runner.shedding import Shedding

ROOMY = HostMemory(total_bytes=10_000, available_bytes=9_000)


class Node:
    def __init__(self, name="t0"):
        self.told = []
        self.shedding = Shedding(name, limit_bytes=100, policy=Policy(pause_s=1.0), emit=self._emit)
        self.now_s = 100.0
        self.orders = {
            job: DriverOrder(
                job=job, attempt=1, desired="run", home="t0", planned_bytes=40, slack_s=slack_s
            )
            for job, slack_s in (("a", 1.0), ("b", 5.0))
        }

    def _emit(self, kind, *, data, job=None):
        assert kind is EventType.MEMORY_PRESSURE
        self.told.append((job, data["action"]))

    def see(self, in_use=(), host=ROOMY, **jobs):
        self.now_s += 1.0
        seen = Resident(own_bytes=1000, jobs=jobs, host=host)
        self.shedding.take(seen, self.orders, in_use=in_use, now_s=self.now_s)
        return {job: self.shedding.asked(job, 1)[0] for job in self.orders}

    def report(self, job, **changes):
        status = DriverStatus(job=job, attempt=1, state="running")
        self.shedding.take_report(DriverReport(status=status, pid=1, **changes))


@pytest.fixture
def node():
    return Node()


def test_orders_stand_until_there_is_room_and_each_step_has_a_number_of_its_own(node):
    assert node.see(a=50, b=50) == {"a": "caches", "b": "caches"}
    first = node.shedding.asked("b", 1)[1]
    assert node.see(a=50, b=50) == {"a": "caches", "b": "spill"}
    assert node.shedding.asked("b", 1)[1] > first
    assert node.see(a=50, b=43) == {"a": "caches", "b": "spill"}, "93 of 100: not yet"
    assert node.see(a=50, b=0) == {"a": "", "b": ""}
    assert node.told == [("a", "caches"), ("b", "caches"), ("b", "spill")]


def test_what_the_runner_itself_takes_is_no_job_s(node):
    assert node.see(a=40, b=40) == {"a": "", "b": ""}


def test_who_is_spilled_is_not_asked_again_and_who_is_above_its_plan_is_ended(node):
    node.see(a=70, b=40)
    node.report("b", spilled=("t0",))
    assert node.see(a=70, b=40) == {"a": "spill", "b": "caches"}
    assert node.shedding.stops == {}
    node.report("a", spilled=("t0",))
    node.see(a=70, b=40)
    assert list(node.shedding.stops) == [("a", 1)]
    assert node.shedding.stops["a", 1] == (
        "out of host memory: it holds 70 B on t0, 30 B above its plan of 40 B, and node t0 is at "
        "110 B of 100 B"
    )
    node.see(a=70, b=40)
    assert node.told.count(("a", "stop")) == 1


def test_an_attempt_that_is_over_is_forgotten(node):
    node.see(a=70, b=50)
    node.see(a=70, b=50)
    node.see(a=70, b=50)
    node.see(a=70, b=50)
    assert list(node.shedding.stops) == [("a", 1)]
    del node.orders["a"]
    node.see(b=50)
    assert node.shedding.stops == {}
    assert node.shedding.asked("a", 1) == ("", 0)


def test_on_a_node_that_is_no_job_s_home_no_state_can_be_spilled():
    node = Node("r0")
    assert node.see(a=70, b=40) == {"a": "caches", "b": "caches"}
    node.see(a=70, b=40)
    assert node.told[-1] == ("a", "stop")


def test_a_tight_host_or_a_short_node_is_looked_at_at_once(node):
    tight = HostMemory(total_bytes=100, available_bytes=8)
    assert node.shedding.is_tight(tight)
    assert not node.shedding.is_tight(ROOMY)
    node.see(a=50, b=50)
    assert node.shedding.is_tight(ROOMY)


def test_nobody_above_its_plan_is_told_without_an_owner(node):
    tight = HostMemory(total_bytes=1000, available_bytes=10)
    for job in ("a", "b"):
        node.report(job, spilled=("t0",))
    node.see(host=tight, a=20, b=20)
    node.see(host=tight, a=20, b=20)
    assert node.told[-1] == (None, "none")
    assert node.shedding.stops == {}
