"""What a node that runs short of host memory asks, of whom, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmux.run.host_memory import HostMemory
from rmux.run.runner.pressure import Holding, Past, Policy, Reading, Step, decide, shortage

ROOMY = HostMemory(total_bytes=10_000, available_bytes=9_000)
POLICY = Policy(pause_s=3.0, again_s=60.0)


def reading(used, limit=100, host=ROOMY):
    return Reading(used_bytes=used, limit_bytes=limit, host=host)


def holding(job, used, planned=40, **changes):
    return Holding(job=job, attempt=1, used_bytes=used, planned_bytes=planned, **changes)


def asked(actions):
    return [(action.step, action.holding and action.holding.job) for action in actions]


class Node:
    """Feeds readings and keeps the past."""

    def __init__(self, *jobs, policy=POLICY):
        self.jobs, self.past, self.policy, self.now_s = list(jobs), Past(), policy, 0.0

    def at(self, now_s, used, host=ROOMY):
        self.now_s = now_s
        actions, self.past = decide(
            reading(used, host=host), self.jobs, self.past, policy=self.policy, now_s=now_s
        )
        return asked(actions)


A, B, C = holding("a", 40, slack_s=1.0), holding("b", 35, slack_s=9.0), holding("c", 60)


def test_below_its_marks_a_node_asks_for_nothing():
    assert Node(A, B).at(0, 94) == []


def test_caches_go_first_then_the_state_with_most_slack_then_the_one_above_its_plan():
    node = Node(A, B, C)
    assert node.at(0, 110) == [(Step.CACHES, "c"), (Step.CACHES, "a"), (Step.CACHES, "b")]
    assert node.at(2.9, 110) == [], "a step has a pause to take effect"
    assert node.at(3, 110) == [(Step.SPILL, "b")]
    assert node.at(6, 110) == [(Step.SPILL, "a")]
    assert node.at(9, 110) == [(Step.SPILL, "c")]
    assert node.at(12, 110) == [(Step.STOP, "c")]
    assert node.at(15, 110) == [], "it is ending"


@pytest.mark.parametrize(("used", "furthest"), [(95, Step.CACHES), (100, Step.SPILL)])
def test_no_step_is_taken_before_its_own_mark(used, furthest):
    node = Node(A, B, C)
    steps = {step for at in range(0, 60, 3) for step, _ in node.at(at, used)}
    assert max(steps) is furthest


def test_nothing_is_asked_twice_within_the_pause_even_when_it_comes_back():
    node = Node(A)
    assert node.at(0, 96) == [(Step.CACHES, "a")]
    used = [96, 50, 98] * 6
    assert [node.at(3 * at, one) for at, one in enumerate(used, start=1)] == [[]] * 18
    assert node.at(60, 96) == [(Step.CACHES, "a")]


def test_where_a_spilled_state_comes_back_the_next_step_is_due():
    node = Node(A, C)
    node.at(0, 106)
    assert node.at(3, 106) == [(Step.SPILL, "a")]
    assert node.at(6, 66) == []
    assert node.at(9, 106) == [(Step.SPILL, "c")]
    assert node.at(12, 66) == []
    assert node.at(15, 106) == [(Step.STOP, "c")]


def test_what_was_asked_stands_until_there_is_room_to_spare():
    node = Node(A)
    shorts = []
    for at, used in enumerate([80, 96, 91, 94, 89, 91]):
        node.at(at, used)
        shorts.append(node.past.is_short)
    assert shorts == [False, True, True, True, False, False]


def test_who_holds_a_device_spills_only_after_those_that_are_parked():
    node = Node(A, replace(B, in_use=True))
    node.at(0, 101)
    assert node.at(3, 101) == [(Step.SPILL, "a")]
    assert node.at(6, 101) == [(Step.SPILL, "b")]


def test_what_is_spilled_or_cannot_spill_is_not_asked_to():
    node = Node(replace(A, spilled=True), replace(B, may_spill=False))
    node.at(0, 101)
    assert node.at(3, 101) == []


def test_nobody_above_its_plan_is_said_and_nobody_stopped():
    node = Node(replace(A, spilled=True))
    node.at(0, 110)
    assert node.at(3, 110) == [(Step.NONE, None)]
    assert node.at(6, 110) == []


def test_a_job_whose_plan_is_not_known_is_never_the_offender():
    node = Node(holding("a", 90, planned=0, spilled=True), holding("b", 41, spilled=True))
    node.at(0, 131)
    assert node.at(3, 131) == [(Step.STOP, "b")]


def test_the_next_attempt_of_a_stopped_job_is_asked_again():
    node = Node(C)
    node.at(0, 96)
    node.jobs = [replace(C, attempt=2)]
    assert node.at(3, 96) == [(Step.CACHES, "c")]


def test_the_host_and_its_cgroup_count_as_the_node_does():
    host = HostMemory(total_bytes=1000, available_bytes=50)
    assert shortage(reading(10, host=host), POLICY).cause == "host"
    assert shortage(reading(10, host=host), POLICY).step is Step.SPILL
    boxed = replace(ROOMY, cgroup_limit_bytes=200, cgroup_used_bytes=196)
    short = shortage(reading(10, host=boxed), POLICY)
    assert (short.cause, short.step, short.used_bytes) == ("cgroup", Step.STOP, 196)
    assert shortage(reading(10), POLICY).step is Step.NONE
