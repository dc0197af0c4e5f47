"""A node short of host memory asks for it back in order: caches, parked state, an attempt."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rmux import timeline
from rmux.events import EventType
from rmux.job import JobState
from rmux.run.trace_check import check
from rmux.run.workers.ballast import Ballast

pytestmark = [pytest.mark.redis, pytest.mark.slow]

MIB = 2**20
PROCESS_BYTES = 120 * MIB
"""More than a driver of an emulated job takes by itself."""
SOON = ("--memory-look-s", "0.1", "--memory-pause-s", "1.5")

_PATH = Path(__file__).parent / "live_group.py"
_SPEC = importlib.util.spec_from_file_location("rmux_live_group", _PATH)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)


@pytest.fixture
def group(tmp_path):
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()


def pressure(group):
    return [
        (event.data["action"], event.job_id)
        for event in group.events(EventType.MEMORY_PRESSURE)
        if event.data["cause"] == "node"
    ]


def shed(group, what):
    return [e for e in group.events(EventType.MEMORY_SHED) if e.data["what"] == what]


def trained_meanwhile(group, job):
    """Whether the job held its train device when a spill was asked for first."""
    asked_s = next(
        event.at_s
        for event in group.events(EventType.MEMORY_PRESSURE)
        if event.data["action"] == "spill"
    )
    held = [h for h in timeline.holds(group.events()) if h.job_id == job and "train" in h.device]
    return any(h.start_s - 0.1 <= asked_s <= (h.end_s or asked_s) + 0.1 for h in held)


def checksums(group, job):
    return {
        event.iteration: event.data["checksum"]
        for event in group.events(EventType.PHASE_END)
        if event.job_id == job and event.phase == "sync"
    }


def test_caches_go_first_then_the_state_with_most_slack_bit_for_bit(group, tmp_path):
    """Both jobs are within their plans, and the node cannot hold what they hold."""
    group.add_nodes(memory_bytes=330 * MIB)
    patient, hasty = (
        group.add_job(
            name,
            slo=slo,
            iterations=14,
            rollout_s=0.4,
            train_s=0.1,
            planned_bytes=PROCESS_BYTES + 200 * MIB,
            held_bytes=130 * MIB,
            cache_bytes=20 * MIB,
        )
        for name, slo in (("patient", 9.0), ("hasty", 2.0))
    )
    child = group.up(*SOON)
    assert child.wait(60) == 0, group.logs()
    assert set(group.states().values()) == {JobState.SUCCEEDED}, group.logs()
    assert check(group.events()) == []

    asked = pressure(group)
    assert {job for action, job in asked if action == "caches"} == {patient, hasty}
    first_spill = next(at for at, (action, _) in enumerate(asked) if action == "spill")
    assert sorted(asked[:first_spill]) == [("caches", hasty), ("caches", patient)]
    first = asked[first_spill][1]
    assert first == patient or trained_meanwhile(group, patient), "what is in use is not parked"
    assert ("stop", patient) not in asked
    assert ("stop", hasty) not in asked

    assert {e.data["freed_bytes"] for e in shed(group, "caches")} >= {20 * MIB}
    spilled = shed(group, "spill")[0]
    assert (spilled.job_id, spilled.node) == (first, "train0")
    assert spilled.data["freed_bytes"] == 130 * MIB
    assert spilled.data["error"] == ""

    # Its next wake reads everything back, and takes as long as a cold start is planned to.
    wakes = [
        event.data["switch_s"]
        for event in group.events(EventType.PHASE_START)
        if event.job_id == first and event.phase == "train" and event.at_s > spilled.at_s
    ]
    assert wakes[0] >= 0.05
    assert not list(group.run_dir.glob("*/spill/*"))

    # The state that was never spilled, by hand.
    spec = group.job(first).spec
    alone = Ballast(spec.emulated, seed=spec.seed, file=tmp_path / "never")
    alone.fill(steps=0)
    for iteration in range(14):
        alone.step(iteration + 1)
        assert checksums(group, first)[iteration] == alone.checksum()
