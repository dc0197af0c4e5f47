"""kill -9 of a driver in mid-rollout, while another job runs on a device that its tail freed."""

from __future__ import annotations

import os
import signal

import pytest

from rmux.events import EventType
from rmux.job import JobState, Phase, RolloutSpec
from rmux.run.trace_check import check

pytestmark = [pytest.mark.redis, pytest.mark.slow]

BOTH = ("roll0/0", "roll0/1")
ITERATIONS = 5


def test_the_job_resumes_and_who_runs_on_its_freed_device_loses_nothing(group, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(map(str, [*range(20, 117), 700, 850, 950])))
    responses = RolloutSpec(
        devices=2, prompts=8, samples_per_prompt=8, max_tokens=1000, max_num_seqs=64
    )
    group.add_nodes(devices=2)
    for name in ("a", "b"):
        group.add_job(
            name,
            rollout=BOTH,
            iterations=ITERATIONS,
            rollout_s=2.1,
            train_s=0.2,
            responses=responses,
            lengths=str(lengths),
            step_s=0.002,
        )
    child = group.up()
    moved = group.wait(
        lambda: group.events(EventType.TAIL_MOVED), timeout_s=40.0, what="a moved tail"
    )[0]
    victim, other = moved.job_id, moved.data["next"]
    os.kill(group.pid("driver", job=victim), signal.SIGKILL)
    assert child.wait(90) == 0, group.logs()
    assert set(group.states().values()) == {JobState.SUCCEEDED}
    events = group.events()
    assert check(events) == []
    assert (group.job(victim).attempt, group.job(other).attempt) == (2, 1)
    for job_id in (victim, other):
        ends = [
            e.iteration for e in events if e.type is EventType.ITERATION_END and e.job_id == job_id
        ]
        assert sorted(set(ends)) == list(range(ITERATIONS))
    rollouts = [
        e.iteration
        for e in events
        if e.type is EventType.PHASE_START and e.job_id == other and e.phase is Phase.ROLLOUT
    ]
    assert rollouts == list(range(ITERATIONS)), "it ran each of its rollouts once"
