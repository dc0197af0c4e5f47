"""A job that takes more host memory than it was admitted with is stopped, the others are not."""

from __future__ import annotations

import pytest

from rmux.events import EventType
from rmux.job import JobState
from rmux.run.trace_check import check

pytestmark = [pytest.mark.redis, pytest.mark.slow]

MIB = 2**20
PROCESS_BYTES = 100 * MIB
ITERATIONS = 12


def test_a_job_that_leaks_is_stopped_with_a_reason_and_the_others_lose_no_iteration(group):
    group.add_nodes(memory_bytes=420 * MIB)
    good = [
        group.add_job(
            name,
            iterations=ITERATIONS,
            rollout_s=0.4,
            train_s=0.1,
            held_bytes=30 * MIB,
            planned_bytes=PROCESS_BYTES + 40 * MIB,
        )
        for name in ("a", "b")
    ]
    leaking = group.add_job(
        "leaking",
        iterations=ITERATIONS,
        rollout_s=0.4,
        train_s=0.1,
        slo=4.0,
        restart_limit=0,
        held_bytes=20 * MIB,
        leak_bytes=80 * MIB,
        planned_bytes=PROCESS_BYTES + 40 * MIB,
    )
    child = group.up("--memory-look-s", "0.1", "--memory-pause-s", "0.5")
    child.wait(90)

    states = group.states()
    assert states[leaking] is JobState.FAILED, group.logs()
    assert [states[job] for job in good] == [JobState.SUCCEEDED] * 2, group.logs()
    assert "out of host memory: it holds" in group.job(leaking).error
    assert "above its plan of 140 MiB" in group.job(leaking).error

    asked = [e for e in group.events(EventType.MEMORY_PRESSURE) if e.data["cause"] == "node"]
    actions = [event.data["action"] for event in asked]
    assert actions.index("caches") < actions.index("spill") < actions.index("stop")
    stops = [event for event in asked if event.data["action"] == "stop"]
    assert [(event.job_id, event.node) for event in stops] == [(leaking, "train0")]
    assert stops[0].data["job_bytes"] > stops[0].data["planned_bytes"]

    assert [group.job(job).attempt for job in good] == [1, 1]
    for job in good:
        ends = [e.iteration for e in group.events(EventType.ITERATION_END) if e.job_id == job]
        assert ends == list(range(ITERATIONS)), "each once, none lost"
    assert check(group.events()) == []
    assert group.leftovers() == {"processes": [], "files": [], "shm": []}
