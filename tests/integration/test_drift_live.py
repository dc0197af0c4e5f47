"""A running job that grows beyond its plan is given another node by the group's own controller."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rmux.cluster import Policy
from rmux.events import EventType
from rmux.job import JobState
from rmux.run.trace_check import check
from rmux.store import groups, pools, profiles

pytestmark = [pytest.mark.redis, pytest.mark.slow]

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

ITERATIONS = 30


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()


def test_a_job_that_grew_goes_on_at_its_next_iteration_on_a_node_of_its_own(group):
    """b takes 0.4 s where 0.2 s are planned; its co-runner accepts rounds of 0.57 s."""
    group.add_nodes(rollout=2)
    a = group.add_job("a", train_s=0.05, slo=2.2, iterations=ITERATIONS)
    b = group.add_job("b", rollout_s=0.4, train_s=0.05, iterations=ITERATIONS)
    with group.store.write() as conn:
        planned = profiles.get(conn, "p-b")
        short = replace(planned.rollout, worst_s=0.2, expected_s=0.2)
        profiles.save(conn, replace(planned, rollout=short))
        cluster = replace(pools.load(conn), policy=Policy(drift_quantile=0.8))
        pools.save(conn, cluster)
    child = group.up()

    def moved():
        with group.store.read() as conn:
            member = groups.get(conn, live_group.GROUP).member(b)
        return [str(device) for device in member.placement.rollout] == ["roll1/0"]

    group.wait(moved, timeout_s=60, what="b on a node of its own")
    assert child.wait(120) == 0, group.logs()
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    assert check(group.events()) == []
    ends = [event for event in group.events(EventType.ITERATION_END) if event.job_id == b]
    assert [event.iteration for event in ends] == list(range(ITERATIONS))
    assert [event.data["attempt"] for event in ends] == sorted(e.data["attempt"] for e in ends)
    assert group.job(b).attempt == 2
    rollouts = [
        (event.data["attempt"], event.device)
        for event in group.events(EventType.PHASE_END)
        if event.job_id == b and event.phase == "rollout"
    ]
    assert dict(rollouts) == {1: "roll0/0", 2: "roll1/0"}
    risks = [e for e in group.events(EventType.SLO_RISK) if "absolute" in e.data["broken"]]
    assert a in {event.job_id for event in risks}
