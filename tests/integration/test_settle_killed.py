"""A settle pass that dies anywhere changes nothing, and the next one does all of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import settling

from rmux.events import EventType
from rmux.ids import numbered_ids
from rmux.place import service
from rmux.store import events, groups, jobs, pools, profiles

SCRIPT = Path(__file__).with_name("settle_killed.py")
AFTER = {
    settling.with_moves: {
        "a": ("a,c", "placed"),
        "c": ("a,c", "placed"),
        "late": ("late", "placed"),
    },
    settling.with_drift: {
        "a": ("a,b", "running"),
        "b": ("a,b", "running"),
        "late": ("late", "placed"),
    },
}


class DiedError(Exception):
    """Stands for a process that ends."""


def settle(store):
    return service.settle_pending(store, ids=numbered_ids())


def died():
    raise DiedError


def outcome(store):
    return {name: found[:2] for name, found in settling.layout(store).items()}


@pytest.fixture(params=AFTER, ids=lambda build: build.__name__)
def build(request):
    return request.param


def test_one_pass_places_who_waits_and_moves_or_replans_the_others(store, build):
    build(store)
    settle(store)
    assert outcome(store) == AFTER[build]


def test_a_pass_that_dies_after_any_write_leaves_every_row_as_it_was(store, build):
    build(store)
    before, number = settling.contents(store), 0
    while True:
        number += 1
        with settling.on_write(store, number, died) as seen:
            try:
                settle(store)
            except DiedError:
                assert settling.contents(store) == before, f"after write {number}"
                continue
        break
    assert number - 1 == seen[0] > 8, "the last pass wrote all and was not stopped"
    assert outcome(store) == AFTER[build]


@pytest.mark.parametrize("point", ["decided", "1", "9", "commit"])
def test_a_process_killed_between_deciding_and_committing_changes_nothing(store, build, point):
    build(store)
    before = settling.contents(store)
    killed = subprocess.run(
        [sys.executable, str(SCRIPT), store.url, point], capture_output=True, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert settling.contents(store) == before
    settle(store)
    assert outcome(store) == AFTER[build]


def test_others_who_place_meanwhile_make_the_pass_decide_again(store, monkeypatch):
    """Another settles between this pass's reading and its writing."""
    settling.with_moves(store)
    inner, calls = service.settle, []

    def decide(*args, **options):
        calls.append(1)
        done = inner(*args, **options)
        if len(calls) == 1:
            settling.add(store, "d", (60, 60), group="g-d", on=("r2", "t2"))
        return done

    monkeypatch.setattr(service, "settle", decide)
    settle(store)
    assert len(calls) == 2
    assert sum(len(found[0].split(",")) > 1 for found in outcome(store).values() if found[0]) >= 2


def test_a_job_placed_anew_is_planned_with_what_was_seen_and_keeps_its_state(store):
    settling.with_drift(store)
    settle(store)
    with store.read() as conn:
        job = jobs.get(conn, "j-b")
        assert (str(job.state), job.group_id) == ("running", "g-a")
        assert profiles.get(conn, job.profile_id).rollout.worst_s == pytest.approx(42)
        member = groups.get(conn, "g-a").member(job.id)
        assert [str(device) for device in member.placement.rollout] == ["r2/0"]
        assert jobs.get(conn, "j-a").profile_id == "p-a"


def risks(store):
    with store.read() as conn:
        return [
            (event.job_id, event.data["broken"], event.source_n)
            for event in events.read(conn, types=[EventType.SLO_RISK])
        ]


def test_a_promise_at_risk_is_told_once_and_again_when_it_is_kept(store):
    settling.with_drift(store)
    settle(store)
    told = risks(store)
    assert [one[:2] for one in told] == [("j-a", ["absolute", "relative"]), ("j-b", ["absolute"])]
    settling.phases(store, "b", rollout_s=18, train_s=5, start=8)
    for start in range(16, 80, 8):
        settling.phases(store, "b", rollout_s=18, train_s=5, start=start)
    settle(store)
    again = risks(store)[len(told) :]
    assert [one[:2] for one in again] == [("j-a", []), ("j-b", [])]
    assert [one[2] for one in risks(store)] == [1, 2, 3, 4]
    settle(store)
    assert len(risks(store)) == 4


def test_without_tracking_nothing_is_told(store):
    settling.with_drift(store)
    with store.write() as conn:
        pools.save(conn, settling.cluster(payback_s=60.0))
    settle(store)
    assert risks(store) == []
