"""Two emulated jobs on two rollout devices, live: stragglers of one make room for the other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rmux.events import EventType
from rmux.job import JobState, Phase, RolloutSpec
from rmux.run.trace_check import check

pytestmark = pytest.mark.redis

_SPEC = importlib.util.spec_from_file_location(
    "rmux_live_group", Path(__file__).with_name("live_group.py")
)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)

BOTH = ("roll0/0", "roll0/1")
RESPONSES = RolloutSpec(
    devices=2, prompts=8, samples_per_prompt=8, max_tokens=1000, max_num_seqs=64
)
WORST_S = 2.1
"""1000 steps of 2 ms, and the prefill."""


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()


def two_jobs(group, folder, *, iterations):
    """Of 64 responses about 62 end within a fifth of a second, and two take over one."""
    lengths = folder / "lengths.txt"
    lengths.write_text("\n".join(map(str, [*range(20, 117), 600, 750, 900])))
    group.add_nodes(devices=2)
    return [
        group.add_job(
            name,
            rollout=BOTH,
            iterations=iterations,
            rollout_s=WORST_S,
            train_s=0.3,
            responses=RESPONSES,
            lengths=str(lengths),
            step_s=0.002,
        )
        for name in ("a", "b")
    ]


def early_starts(events):
    """Moves whose freed device ran the other job before the rollout that freed it had ended."""
    found = []
    for moved in (event for event in events if event.type is EventType.TAIL_MOVED):
        end = next(
            event
            for event in events
            if event.type is EventType.PHASE_END
            and (event.job_id, event.iteration, event.phase)
            == (moved.job_id, moved.iteration, Phase.ROLLOUT)
        )
        found += [
            start
            for start in events
            if start.type in (EventType.PHASE_START, EventType.DEVICE_JOINED)
            and start.job_id == moved.data["next"]
            and moved.at_s < start.at_s < end.at_s
            and set(start.data.get("devices", [start.device])) & set(moved.data["freed"])
        ]
    return found


def test_the_next_job_begins_on_a_freed_device_before_the_tail_has_ended(group, tmp_path):
    a, b = two_jobs(group, tmp_path, iterations=6)
    assert group.up().wait(90) == 0, group.logs()
    assert group.states() == {a: JobState.SUCCEEDED, b: JobState.SUCCEEDED}
    events = group.events()
    assert check(events) == []
    moves = [event for event in events if event.type is EventType.TAIL_MOVED]
    assert moves
    assert len(early_starts(events)) >= 2
    for moved in moves:
        assert moved.data["requests"] == moved.data["exact"]
        assert set(moved.data["freed"]) | set(moved.data["kept"]) == set(BOTH)
    ends = [e for e in events if e.type is EventType.PHASE_END and e.phase is Phase.ROLLOUT]
    assert {"whole"} <= ends[0].data.keys()
    assert not all(end.data["whole"] for end in ends)


def test_with_the_trigger_off_every_rollout_keeps_its_devices_to_the_end(group, tmp_path):
    two_jobs(group, tmp_path, iterations=3)
    assert group.up("--tail-trigger", "off").wait(90) == 0, group.logs()
    assert group.events(EventType.TAIL_MOVED) == []
    assert check(group.events()) == []
