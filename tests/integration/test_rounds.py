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
    short = {"rollout": ("roll1/0",), "rollout_s": 0.05, "train_s": 0.05}
    a = group.add_job("a", rollout_s=0.2, train_s=0.05, iterations=14)
    b = group.add_job("b", **short, iterations=34, turns="abb")
    child = group.up()
    group.wait_iteration(a, 4)
    c = group.add_job("c", **short, iterations=3, turns="bacb")
    assert child.wait(60) == 0, group.logs()
    assert group.states() == dict.fromkeys((a, b, c), JobState.SUCCEEDED)
    assert check(group.events()) == []
    # Once both are up, whole rounds of the first order, then whole ones of the second: at first
    # without c, which starts, then with it. At the end b is alone.
    rounds = "[ab]{0,4}(abb){3,}(bab)*(bacb){3}(bab)*b*"
    assert re.fullmatch(rounds, granted(group, Phase.TRAIN)), granted(group, Phase.TRAIN)
    rollouts = granted(group, Phase.ROLLOUT).replace("a", "")
    assert re.fullmatch("b+(bcb){3}b+", rollouts), rollouts
