"""A group whose short job runs several times a round, through its real processes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import JobState, Phase
from rmux.run.trace_check import check
from rmux.store import groups

pytestmark = pytest.mark.redis

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()


def granted(group, phase: Phase) -> str:
    """Who was granted that phase, in order: by the last letter of the job."""
    return "".join(e.job_id[-1] for e in group.events(EventType.GRANT) if e.phase is phase)


def test_a_short_job_runs_twice_a_round_and_a_stored_order_is_taken_up_between_rounds(group):
    group.add_nodes(rollout=2)
    long = group.add_job("a", rollout_s=0.2, train_s=0.05, iterations=10)
    short = group.add_job(
        "b", rollout=("roll1/0",), rollout_s=0.05, train_s=0.05, iterations=25, turns="abb"
    )
    child = group.up()
    group.wait_iteration(long, 4)
    joiner = group.add_job(
        "c", rollout=("roll1/0",), rollout_s=0.05, train_s=0.05, iterations=3, turns="bacb"
    )
    assert child.wait(60) == 0, group.logs()
    assert group.states() == dict.fromkeys((long, short, joiner), JobState.SUCCEEDED)
    assert check(group.events()) == []

    trains = granted(group, Phase.TRAIN)
    # Before: twice in each round of the long job. From the join on: whole rounds of the new order,
    # without the joiner while it still starts and when it is done.
    before, after = trains[: trains.index("c")], trains[trains.index("c") :]
    assert re.fullmatch("b{0,2}(abb){3,}(ba?b?|bab)*", before + "b" * 0), trains
    assert "cbbac" in after, trains
    with group.store.read() as conn:
        assert groups.get(conn, live_group.GROUP).rotation_version >= 3
