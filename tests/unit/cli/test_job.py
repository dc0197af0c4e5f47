from __future__ import annotations

import dataclasses
import io
import json
import sys
from datetime import UTC, datetime, timedelta

import pytest

from rmux.cli import job_logs, job_wait, mounts
from rmux.clock import ManualClock
from rmux.events import EventType
from rmux.job import JobState, Phase, Reason
from rmux.store import groups, jobs, leases


@pytest.fixture(autouse=True)
def only_the_reading_verbs(monkeypatch):
    monkeypatch.setitem(mounts.MOUNTS, "job", mounts.Mount("Jobs.", ("job",)))


def move(filled, job_id, state, **how):
    with filled.store.write() as conn:
        jobs.set_state(conn, job_id, state, **how)


def test_ls_is_one_document_of_jobs_in_the_order_they_were_made(run, filled):
    code, out, err = run("job", "ls", "--json")
    listed = json.loads(out)
    assert (code, listed["schema"], listed["total"]) == (0, "rmux.job_list/v1", 3)
    assert [job["name"] for job in listed["items"]] == ["math", "code", "wide"]
    assert [job["state"] for job in listed["items"]] == ["running", "running", "pending"]
    assert "3 of 3 jobs" in err
    assert run("job", "ls", "-o", "name", "-q") == (0, "j-000001\nj-000002\nj-000003\n", "")


def test_ls_shows_states_in_capitals_and_the_slowdown_beside_its_limit(run, filled):
    filled.rounds(4)
    out = run("job", "ls")[1]
    row = next(line for line in out.splitlines() if "math" in line).split()
    assert row[:3] == ["j-000001", "math", "RUNNING"]
    assert "1.33/1.30" in row  # 12 s rounds of which 3 s were waits: 12 / 9


def test_ls_says_when_it_leaves_jobs_out(run, filled):
    old = datetime.now(UTC) - timedelta(days=2)
    move(filled, "j-000003", JobState.CANCELLED, ended_at=old)
    assert "wide" not in run("job", "ls")[1]
    assert "wide" in run("job", "ls", "--all")[1]
    assert "wide" in run("job", "ls", "--state", "cancelled")[1]
    listed = json.loads(run("job", "ls", "--limit", "1", "--json")[1])
    assert ([job["name"] for job in listed["items"]], listed["truncated"]) == (["code"], True)
    assert "1 of 2 jobs" in run("job", "ls", "--limit", "1")[2]
    assert run("job", "ls", "--group", "g-000001", "-o", "name")[1].split() == [
        "j-000001",
        "j-000002",
    ]


def test_a_state_that_is_none_is_a_usage_error_with_the_states(run, filled):
    code, out, err = run("job", "ls", "--state", "sleeping")
    assert (code, out) == (2, "")
    assert "succeeded" in err


def test_show_finds_a_job_by_name_prefix_or_id(run, filled):
    for text in ("math", "j-000001", "000001"):
        code, out, _ = run("job", "show", text, "--json")
        assert (code, json.loads(out)["id"]) == (0, "j-000001")
    code, out, err = run("job", "show", "maths", "--json")
    assert (code, out) == (4, "")
    assert json.loads(err.splitlines()[-1])["code"] == "not-found"


def test_show_gives_both_slowdowns_and_the_labels(run, filled):
    filled.rounds(4)
    shown = json.loads(run("job", "show", "math", "--json")[1])
    assert shown["slowdown"]["now"] == pytest.approx(12 / 9)
    assert shown["slowdown"]["planned"] == pytest.approx(12 / 9.8)
    assert shown["labels"] == {"team": "math", "env": "ci"}
    assert shown["created_at"].endswith("Z")
    assert "period     12 s" in run("job", "show", "math")[1]


def test_why_of_a_pending_job_names_what_stands_against_each_place(run, filled):
    run("pool", "drain", "r1", "t1", "--reason", "ecc")
    move(
        filled,
        "j-000003",
        JobState.PENDING,
        reason=Reason(code="slo", message="slows math 1.87x where 1.30x is allowed"),
    )
    code, out, _ = run("job", "why", "wide")
    assert code == 0
    assert "slo: slows math 1.87x" in out
    assert "r1 (ecc)" in out
    assert "group g-000001" in out
    assert "rmux pool undrain r1" in out


def test_why_of_a_placed_job_without_a_controller_says_to_bring_its_group_up(run, filled):
    assert "rmux group up g-000001" in run("job", "why", "math")[1]
    filled.serve()
    filled.rounds(4)
    told = run("job", "why", "math")[1]
    assert "slowdown 1.33" in told
    assert "rmux group up" not in told


def test_why_counts_failures_apart_from_attempts(run, filled):
    filled.serve()
    with filled.store.write() as conn:
        jobs.update(conn, "j-000001", attempt=7)
    restarting = {"job": "j-000001", "state": "lost", "code": "job.restarting"}
    filled.append(filled.event(EventType.JOB_STATE, filled.now_s, **restarting))
    assert "attempt 7: 1 failed, 3 restarts allowed" in run("job", "why", "math")[1]


def test_why_tells_what_host_memory_made_of_a_job(run, filled):
    filled.serve()
    told = {"job": "j-000001", "phase": None}
    asked = filled.event(
        EventType.MEMORY_PRESSURE,
        filled.now_s,
        action="spill",
        cause="node",
        used_bytes=5 * 2**30,
        limit_bytes=4 * 2**30,
        job_bytes=2**30,
        planned_bytes=2**30,
        **told,
    )
    done = filled.event(
        EventType.MEMORY_SHED, filled.now_s, what="spill", freed_bytes=2**29, error="", **told
    )
    filled.append(*(dataclasses.replace(event, node="t0") for event in (asked, done)))
    why = run("job", "why", "math")[1]
    assert "t0 short of memory (node at 5 GiB of 4 GiB): spill; it held 1 GiB" in why
    assert "gave up spill on t0: 512 MiB" in why


def test_why_of_a_failed_job_shows_its_last_words_and_history(run, filled):
    move(filled, "j-000001", JobState.FAILED, error="Traceback\nValueError: boom")
    filled.append(
        filled.event(
            EventType.JOB_STATE,
            filled.now_s,
            job="j-000001",
            state="failed",
            reason="exit 1",
            attempt=4,
        )
    )
    told = run("job", "why", "math", "--history")[1]
    assert "ValueError: boom" in told
    assert "FAILED exit 1" in told
    why = json.loads(run("job", "why", "math", "--history", "--json")[1])
    assert why["history"][0]["attempt"] == 4


def test_why_reads_jobs_from_stdin_and_answers_with_one_list(run, filled, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("j-000001\nj-000003 pending\n\n"))
    listed = json.loads(run("job", "why", "-", "--json")[1])
    assert [item["id"] for item in listed["items"]] == ["j-000001", "j-000003"]


def test_wait_is_over_at_once_when_the_condition_holds(run, filled):
    with filled.store.write() as conn:
        jobs.update(conn, "j-000001", iteration=3)
    code, out, _ = run("job", "wait", "math", "--for", "iter=3", "--json")
    assert (code, json.loads(out)["met"]) == (0, True)
    assert run("job", "wait", "math", "code", "--for", "running")[0] == 0
    assert run("job", "wait", "math", "wide", "--for", "running", "--any")[0] == 0


def test_wait_gives_up_with_6_as_soon_as_a_job_ended_otherwise(run, filled):
    move(filled, "j-000003", JobState.CANCELLED)
    code, out, err = run("job", "wait", "math", "wide", "--for", "done")
    assert (code, out) == (6, "")
    assert "wide cancelled" in err
    assert run("job", "wait", "wide", "--for", "ended")[0] == 0


def test_wait_ends_with_124_at_its_deadline(run, filled):
    assert run("job", "wait", "wide", "--for", "running", "--timeout", "300ms")[0] == 124


def test_wait_refuses_what_nobody_can_wait_for(run, filled):
    code, _, err = run("job", "wait", "wide", "--for", "iter=many")
    assert code == 2
    assert "iter=5" in err


def test_wait_sees_what_happens_while_it_waits(filled):
    class Helpful(ManualClock):
        def sleep_s(self, duration_s: float) -> None:
            move(filled, "j-000001", JobState.SUCCEEDED)

    condition = job_wait.Condition.parse("done")
    document = job_wait.wait(filled.store, ["math"], condition, clock=Helpful())
    assert [(job.id, job.state) for job in document.jobs] == [("j-000001", "succeeded")]


def test_cancel_ends_a_pending_job_at_once_and_asks_a_served_one(run, filled):
    filled.serve()
    code, out, _ = run("job", "cancel", "wide", "math", "--json")
    wide, math = json.loads(out)["items"]
    assert code == 0
    assert (wide["state"], wide["changed"]) == ("cancelled", True)
    assert (math["state"], math["desired"], math["changed"]) == ("running", "cancel", True)


def test_cancelling_what_ended_or_is_ending_changes_nothing_and_succeeds(run, filled):
    filled.serve()

    def changed(*argv):
        code, out, _ = run("job", "cancel", *argv, "--json")
        assert code == 0
        return json.loads(out)["items"][0]["changed"]

    assert changed("wide") is True
    assert changed("wide") is False
    assert changed("math") is True
    assert changed("math") is False
    assert changed("math", "--now") is True
    assert changed("math") is False


def test_cancelling_a_placed_job_that_nobody_serves_frees_its_nodes(run, filled):
    with filled.store.write() as conn:
        jobs.set_state(conn, "j-000001", JobState.PLACED)
        jobs.set_state(conn, "j-000002", JobState.PLACED)
    run("job", "cancel", "math", "code")
    seen = json.loads(run("pool", "ls", "--json")[1])["items"]
    with filled.store.read() as conn:
        waiting = jobs.get(conn, "j-000003")
    assert waiting.state is JobState.PLACED  # what came free went to the job that waited
    assert [pool["free_nodes"] for pool in seen] == [1, 1]


@pytest.mark.parametrize("state", ["starting", "running", "paused", "stopping", "lost"])
def test_cancelling_a_job_whose_controller_is_gone_ends_it_at_once(run, filled, state):
    lease = filled.serve()
    with filled.store.write() as conn:
        jobs.set_state(conn, "j-000001", JobState(state))
        jobs.set_desired(conn, "j-000001", "cancel")
        leases.release(conn, lease)
    (math,) = json.loads(run("job", "cancel", "math", "--json")[1])["items"]
    with filled.store.read() as conn:
        members = groups.get(conn, "g-000001").members
    assert (math["state"], math["changed"]) == ("cancelled", True)
    assert [member.name for member in members] == ["code", "wide"]  # math's room went to wide


def test_a_dry_run_of_cancel_shows_the_same_and_changes_nothing(run, filled):
    would = json.loads(run("job", "cancel", "wide", "--dry-run", "--json")[1])
    assert would["dry_run"] is True
    assert would["items"][0]["state"] == "cancelled"
    with filled.store.read() as conn:
        assert jobs.get(conn, "j-000003").state is JobState.PENDING


def test_one_unknown_job_among_several_cancels_none(run, filled):
    assert run("job", "cancel", "wide", "nobody")[0] == 4
    with filled.store.read() as conn:
        assert jobs.get(conn, "j-000003").state is JobState.PENDING


@pytest.fixture
def logs(filled, tmp_path):
    """The run folder of j-000001 with two attempts."""
    folder = tmp_path / "runs" / "j-000001"
    for attempt, text in ((1, "first\nboom\n"), (2, "one\ntwo\nthree\n")):
        path = folder / "attempts" / str(attempt) / "driver.log"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with filled.store.write() as conn:
        jobs.update(conn, "j-000001", run_dir=str(folder), attempt=2)
    return folder


def test_logs_are_those_of_the_last_attempt_unless_another_is_named(run, logs):
    assert run("job", "logs", "math")[:2] == (0, "one\ntwo\nthree\n")
    assert run("job", "logs", "math", "--tail", "1")[1] == "three\n"
    assert run("job", "logs", "math", "--attempt", "1")[1] == "first\nboom\n"
    line = json.loads(run("job", "logs", "math", "--tail", "1", "-o", "jsonl")[1])
    assert line == {"schema": "rmux.log/v1", "job": "j-000001", "attempt": 2, "line": "three"}
    assert run("job", "logs", "wide")[0] == 4


def test_following_logs_goes_on_until_the_job_ends_and_over_to_a_new_attempt(filled, logs):
    class Busy(ManualClock):
        """Writes something at every wait."""

        turns = 0

        def sleep_s(self, duration_s: float) -> None:
            self.turns += 1
            if self.turns == 1:
                with (logs / "attempts" / "2" / "driver.log").open("a") as log:
                    log.write("four\nfi")
            elif self.turns == 2:
                with (logs / "attempts" / "2" / "driver.log").open("a") as log:
                    log.write("ve\n")
            elif self.turns == 10:
                path = logs / "attempts" / "3" / "driver.log"
                path.parent.mkdir()
                path.write_text("again\n")
            elif self.turns == 20:
                move(filled, "j-000001", JobState.SUCCEEDED)

    source = job_logs.Source(filled.store, "j-000001", runs=logs.parent)
    told = list(job_logs.read(source, follow=True, tail=1, clock=Busy()))
    assert [(line.attempt, line.line) for line in told] == [
        (2, "three"),
        (2, "four"),
        (2, "five"),
        (3, "again"),
    ]


def test_what_a_waiting_job_does_shows_in_its_phase(run, filled):
    with filled.store.write() as conn:
        jobs.update(conn, "j-000001", phase=Phase.TRAIN, phase_state="waiting")
    assert "wait:train" in run("job", "ls")[1]


def test_pause_and_resume_ask_once_and_refuse_a_job_that_ends(run, filled):
    filled.serve()

    def items(*argv):
        code, out, _ = run("job", *argv, "--json")
        return code, [(one["desired"], one["changed"]) for one in json.loads(out)["items"]]

    assert items("pause", "math", "code", "--dry-run") == (0, [("pause", True), ("pause", True)])
    assert items("pause", "math") == (0, [("pause", True)])
    assert items("pause", "math") == (0, [("pause", False)])
    assert "RUNNING>PAUSE" in run("job", "ls")[1]
    assert items("resume", "math", "code") == (0, [("run", True), ("run", False)])
    run("job", "cancel", "wide", "code")
    assert run("job", "pause", "wide")[0] == 5
    code, _, err = run("job", "resume", "code")
    assert code == 5
    assert "being cancelled" in err


def test_a_job_tells_what_it_is_charged_and_a_waiting_one_that_it_is_not(run, filled):
    items = json.loads(run("job", "ls", "--json")[1])["items"]
    price = json.loads(run("group", "show", "g-000001", "--json")[1])["usd_per_h"]
    assert items[0]["usd_per_h"] + items[1]["usd_per_h"] == price
    assert items[2]["usd_per_h"] is None
    assert (items[0]["tenant"], items[0]["priority"], items[0]["deadline_s"]) == ("", 0, 0.0)
    shown = json.loads(run("job", "show", "math", "--json")[1])
    assert shown["usd_per_h"] == items[0]["usd_per_h"]
    assert f"charged    {shown['usd_per_h']:.2f} USD/h" in run("job", "show", "math")[1]
    head = run("job", "ls", "-o", "wide")[1].splitlines()[0]
    assert "USD/H" in head
    assert "TENANT" in head
