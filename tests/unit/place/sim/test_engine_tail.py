"""Rollouts whose stragglers move together: what the others gain, and that nobody is late."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from rmux import timeline
from rmux.group import CoExecGroup
from rmux.ids import JobId
from rmux.place.sim.dispatch import Dispatch
from rmux.place.sim.durations import Durations, Fixed, HeavyTailed, PerJob
from rmux.place.sim.engine import Options, Result, run
from rmux.place.sim.tails import Migration
from rmux.run.trace_check import check

DATA = Path(__file__).parents[3] / "data" / "lengths" / "skythought.csv"
A, B = JobId("j-a"), JobId("j-b")
NODES = tuple(f"r{index}" for index in range(8))


def real_lengths(name: str) -> list[int]:
    with DATA.open() as file:
        return [int(row["approx_tokens"]) for row in csv.DictReader(file) if row["set"] == name]


def two_jobs(lab, **changes: Any) -> CoExecGroup:
    return lab.group(*(lab.member(name, 100, 60, NODES, **changes) for name in ("a", "b")))


def batches(
    group: CoExecGroup, name: str, *, seed: int = 0, crowding: float = 0.0
) -> dict[JobId, HeavyTailed]:
    lengths = real_lengths(name)
    limit = min(max(lengths), 32_768)
    return {
        m.job_id: HeavyTailed(Fixed(), lengths, limit, 128, seed, crowding) for m in group.members
    }


def simulate(group: CoExecGroup, durations: Durations, **options: Any) -> Result:
    values = {"iterations": 12, "leave": False, "durations": durations, **options}
    return run([group], Options(**values))


@pytest.mark.parametrize("name", ["math-7b-math500", "32b-short-cot-aime24", "27b-math500"])
def test_moved_stragglers_shorten_the_iterations_of_a_shared_node(lab, name):
    group = two_jobs(lab)
    drawn = batches(group, name)
    durations = PerJob(Fixed(), drawn)
    plain = simulate(group, durations)
    moving = simulate(group, durations, migration=Migration(batches=drawn))
    assert moving.jobs[A].iteration_s(skip=2) < 0.9 * plain.jobs[A].iteration_s(skip=2)
    assert sum(times.freed_device_s for times in moving.jobs.values()) > 0
    assert sum(times.freed_device_s for times in plain.jobs.values()) == 0


def test_where_many_run_to_the_limit_the_predicted_gain_beats_the_fixed_trigger(lab):
    group = two_jobs(lab)
    drawn = batches(group, "32b-long-cot-aime24", crowding=0.33)
    durations = PerJob(Fixed(), drawn)
    by_gain, fixed = (
        simulate(group, durations, migration=Migration(batches=drawn, trigger=trigger))
        for trigger in (None, 0.8)
    )
    assert by_gain.jobs[A].iteration_s(skip=2) < 0.97 * fixed.jobs[A].iteration_s(skip=2)


PAIRS = {
    "[7B-4k] x 2": ((81, 77, "math-7b-math500"), (81, 77, "math-7b-math500")),
    "[7B-8k + 14B-8k]": ((134, 113, "math-7b-math500"), (239, 197, "14b-math500")),
    "[14B-8k] x 2": ((239, 197, "14b-math500"), (239, 197, "14b-math500")),
    **{
        f"{name} x 2": ((134, 40, name), (134, 40, name))
        for name in ("32b-short-cot-aime24", "32b-long-cot-aime24", "27b-math500")
    },
}
TIES = 0.995
"""Equal moves a response earlier or later."""


@pytest.mark.parametrize("pair", PAIRS)
def test_the_predicted_gain_is_never_below_the_fixed_trigger_of_80_percent(lab, pair):
    (a, b), drawn = PAIRS[pair], {}
    group = lab.group(lab.member("a", *a[:2], NODES), lab.member("b", *b[:2], NODES))
    for number, (member, job) in enumerate(zip(group.members, (a, b), strict=True)):
        lengths = real_lengths(job[2])
        limit = 5407 if job[2] == "math-7b-math500" else min(max(lengths), 32_768)
        drawn[member.job_id] = HeavyTailed(Fixed(), lengths, limit, 256, number)
    rates = []
    for trigger in (None, 0.8):
        migration = Migration(batches=drawn, trigger=trigger)
        found = simulate(group, PerJob(Fixed(), drawn), migration=migration)
        rates.append(sum(1 / times.iteration_s() for times in found.jobs.values()))
    assert rates[0] >= TIES * rates[1]


@pytest.mark.parametrize("trigger", [None, 0.8])
@pytest.mark.parametrize("name", ["math-7b-math500", "32b-long-cot-aime24"])
def test_no_iteration_ends_later_than_with_every_phase_at_its_worst_case(lab, name, trigger):
    group = lab.group(
        lab.member("a", 100, 60, NODES), lab.member("b", 40, 70, NODES[:4], sync_s=3.0)
    )
    drawn = batches(group, name)
    migration = Migration(batches=drawn, trigger=trigger)
    planned = simulate(group, Fixed())
    moved = simulate(group, PerJob(Fixed(), drawn), migration=migration)
    for job_id, times in planned.jobs.items():
        pairs = zip(moved.jobs[job_id].iterations, times.iterations, strict=False)
        assert all(one.end_ms <= worst.end_ms for one, worst in pairs)


@pytest.mark.parametrize("dispatch", Dispatch)
def test_freed_devices_are_released_before_the_rollout_ends_and_the_journal_is_sound(lab, dispatch):
    group = two_jobs(lab)
    drawn = batches(group, "math-7b-math500")
    result = simulate(
        group,
        PerJob(Fixed(), drawn),
        migration=Migration(batches=drawn, trigger=0.8),
        events=True,
        dispatch=dispatch,
    )
    assert check(result.events) == []
    ends: dict[tuple[JobId, int], set[float | None]] = {}
    for hold in timeline.holds(result.events):
        if hold.phase == "rollout":
            ends.setdefault((hold.job_id, hold.iteration), set()).add(hold.end_s)
    assert any(len(found) > 1 for found in ends.values())


def test_a_job_alone_moves_nothing_by_predicted_gain(lab):
    group = lab.group(lab.member("a", 100, 60, NODES))
    drawn = batches(group, "math-7b-math500")
    durations = PerJob(Fixed(), drawn)
    moving = simulate(group, durations, migration=Migration(batches=drawn))
    plain = simulate(group, durations)
    assert moving.jobs == plain.jobs


def test_where_a_move_costs_much_time_only_devices_without_a_response_are_freed(lab):
    group = two_jobs(lab)
    drawn = batches(group, "math-7b-math500")
    migration = Migration(batches=drawn, move_s=1000.0)
    dear = simulate(group, PerJob(Fixed(), drawn), migration=migration)
    assert sum(times.freed_device_s for times in dear.jobs.values()) > 0
    for times in dear.jobs.values():
        assert all(one.rolled_ms - one.rollout_ms < 1_000_000 for one in times.iterations)


def test_a_tail_that_is_under_way_when_another_member_leaves_goes_on_alone(lab):
    group = two_jobs(lab)
    drawn = batches(group, "27b-math500")
    durations = PerJob(Fixed(), drawn)
    found = simulate(group, durations, migration=Migration(batches=drawn), leave=True, iterations=6)
    assert [len(found.jobs[job].iterations) for job in (A, B)] == [6, 6]
    last = {job: times.iterations[-1] for job, times in found.jobs.items()}
    assert last[B].rollout_ms < last[A].end_ms < last[B].rolled_ms, "b rolls out when a leaves"
