from __future__ import annotations

import dataclasses
import itertools
import json

import jsonschema
import pytest

from rmux.cli import group_views, watch_view
from rmux.cli.documents_groups import EventRecord, GroupDocument
from rmux.cli.schema import json_schema
from rmux.events import EventType
from rmux.job import JobState
from rmux.store import groups, jobs


@pytest.fixture
def turning(filled):
    """Served by a controller, with five rounds behind it."""
    filled.serve()
    filled.rounds(5)
    return filled


def look(filled, **how):
    with filled.store.read() as conn:
        return group_views.look(conn, "g-000001", **how)


def test_ls_shows_period_price_and_whether_anybody_serves_the_group(run, filled):
    listed = json.loads(run("group", "ls", "--json")[1])["items"]
    assert [(group["id"], group["status"]) for group in listed] == [("g-000001", "idle")]
    assert listed[0]["period_s"] == pytest.approx(12.2)  # both rollouts and their switches
    assert listed[0]["usd_per_h"] == pytest.approx(1.85 + 5.28)
    filled.serve()
    assert " UP " in run("group", "ls")[1]


def test_show_tells_what_each_device_does_and_the_last_iterations(run, turning):
    code, out, _ = run("group", "show", "math", "--json")
    shown = json.loads(out)
    assert code == 0
    assert [device["device"] for device in shown["devices"]] == ["r0/0", "t0/0"]
    assert shown["devices"][0]["busy"] > 0.9
    assert shown["members"][0]["last_iterations_s"] == pytest.approx([12.0] * 4)
    text = run("group", "show", "g-000001")[1]
    assert "bound by rollout load r0/0" in text
    assert "12 s 12 s" in text


def test_a_held_device_shows_its_holder_and_for_how_long(turning):
    turning.append(
        turning.event(
            EventType.GRANT,
            turning.now_s - 5,
            job="j-000001",
            iteration=6,
            device="r0/0",
            epoch=1,
            seq=99,
            attempt=1,
        )
    )
    seen = group_views.document(look(turning))
    device = seen.devices[0]
    assert (device.job, device.phase, device.iteration) == ("j-000001", "rollout", 6)
    assert device.since_s == pytest.approx(5, abs=2)


def test_show_tells_the_memory_of_each_node_beside_its_limit(run, filled, samples):
    lease = filled.serve()
    for number, (epoch, node, resident_bytes) in enumerate(
        [
            (lease.epoch - 1, "t0", 2**30),
            (lease.epoch, "r0", 2**20),
            (lease.epoch, "r0", 3 * 2**30),
        ]
    ):
        told = samples.event(
            number,
            EventType.MEMORY,
            source=f"g-000001@{epoch}",
            job=None,
            phase=None,
            resident_bytes=resident_bytes,
            jobs={"j-000001": resident_bytes // 2},
        )
        filled.append(dataclasses.replace(told, node=node))
    shown = json.loads(run("group", "show", "g-000001", "--json")[1])
    (node,) = shown["memory"]
    assert (node["node"], node["resident_bytes"]) == ("r0", 3 * 2**30)
    assert node["limit_bytes"] == 7 * 2**30
    first, *others = node["jobs"]
    assert (first["job"], first["resident_bytes"]) == ("j-000001", 3 * 2**29)
    assert [other["resident_bytes"] for other in others] == [None] * len(others)
    assert node["planned_bytes"] == sum(job["planned_bytes"] for job in node["jobs"]) > 0
    text = run("group", "show", "g-000001")[1]
    assert "memory      r0  3 GiB of 7 GiB, planned " in text
    assert "1.5 GiB (plan " in text


def test_the_picture_fits_the_screen_and_shows_pools_jobs_lanes_and_events(turning):
    for width, height in ((80, 24), (120, 40), (60, 10)):
        lines = watch_view.render(look(turning), width=width, height=height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)
    text = "\n".join(watch_view.render(look(turning), width=120, height=40))
    assert "g-000001 UP  2 members  period 12.2 s (rollout load r0/0)  7.13 USD/h" in text
    assert "A  math" in text
    assert "1.33/1.30!" in text
    assert "r0/0  " in text
    assert "AAAAAABBBBBB" in text
    assert "iteration.end B code it=5" in text


def test_once_prints_the_picture_or_one_document(run, turning):
    assert "POOL" in run("group", "watch", "g-000001", "--once")[1]
    assert json.loads(run("group", "watch", "g-000001", "--once", "--json")[1])["id"] == "g-000001"
    lines = run("group", "watch", "g-000001", "--once", "-o", "jsonl")[1].splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["snapshot", "end"]


def test_a_watch_in_json_lines_is_snapshot_events_and_one_end(run, turning):
    with turning.store.write() as conn:
        for job in ("j-000001", "j-000002"):
            jobs.set_state(conn, job, JobState.SUCCEEDED)
    code, out, _ = run(
        "group", "watch", "g-000001", "-o", "jsonl", "--since-seq", "0", "--until", "done"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert lines[0]["type"] == "snapshot"
    assert [line["seq"] for line in lines[1:-1]] == list(range(1, 91))
    assert (lines[-1]["type"], lines[-1]["reason"], lines[-1]["exit_code"]) == (
        "end",
        "until:done",
        0,
    )
    schema = json_schema(EventRecord)
    for line in lines:
        jsonschema.validate(line, schema)
    jsonschema.validate(lines[0]["data"], json_schema(GroupDocument))


def test_a_watch_goes_on_from_a_number(run, filled):
    filled.rounds(5)
    out = run("group", "watch", "math", "-o", "jsonl", "--since-seq", "88", "--until", "idle")[1]
    assert [json.loads(line)["seq"] for line in out.splitlines()[1:]] == [89, 90, 90]


def test_a_watch_that_times_out_says_so_in_its_end_line(run, turning):
    code, out, _ = run("group", "watch", "g-000001", "-o", "jsonl", "--timeout", "400ms")
    end = json.loads(out.splitlines()[-1])
    assert (code, end["reason"], end["exit_code"]) == (124, "timeout", 124)


def test_off_a_terminal_a_watch_is_plain_lines_that_name_the_jobs(run, filled):
    filled.rounds(5)
    code, out, _ = run("group", "watch", "g-000001", "--since-seq", "0", "--until", "idle")
    assert code == 0
    assert "\x1b" not in out
    assert "phase.start math it=1 rollout waited 1.5 s switch 0.3 s" in out
    assert out.splitlines()[-1].endswith("end until:idle")


def test_a_stream_cannot_be_one_document(run, turning):
    code, _, err = run("group", "watch", "g-000001", "--json")
    assert code == 2
    assert "jsonl" in err


def test_a_timeline_draws_a_lane_per_device(run, turning):
    code, out, _ = run("group", "timeline", "g-000001", "--last", "60s", "--width", "60")
    assert code == 0
    assert "r0/0  " in out
    assert "AAAAAABBBBBB" in out
    assert "A j-000001  B j-000002" in out
    document = json.loads(run("group", "timeline", "g-000001", "--json")[1])
    assert set(document["lanes"]) == {"r0/0", "t0/0"}
    assert len(document["lanes"]["r0/0"]) == 80


def test_down_of_a_served_group_with_running_jobs_needs_yes(run, turning):
    code, out, err = run("group", "down", "g-000001")
    assert (code, out) == (2, "")
    assert "would stop 2 running jobs" in err
    code, out, _ = run("group", "down", "g-000001", "--yes", "--json")
    assert (code, json.loads(out)["changed"], json.loads(out)["status"]) == (0, True, "stopping")
    assert json.loads(run("group", "down", "g-000001", "--json")[1])["changed"] is False
    with turning.store.read() as conn:
        assert groups.get(conn, "g-000001").desired == "down"


def test_a_dry_run_of_down_changes_nothing(run, turning):
    assert json.loads(run("group", "down", "math", "--dry-run", "--json")[1])["changed"] is True
    with turning.store.read() as conn:
        assert groups.get(conn, "g-000001").desired == "run"


def test_up_of_an_unknown_group_is_exit_4(run, filled):
    assert run("group", "up", "g-000009")[0] == 4


def test_a_trace_can_be_checked_from_the_store_and_from_a_file(run, filled, tmp_path):
    filled.rounds(5)
    code, out, _ = run("trace", "check", "g-000001", "--json")
    assert (code, json.loads(out)["ok"], json.loads(out)["events"]) == (0, True, 90)
    lines = run("group", "watch", "math", "-o", "jsonl", "--since-seq", "0", "--until", "idle")[1]
    (tmp_path / "trace.jsonl").write_text(lines)
    assert json.loads(run("trace", "check", "trace.jsonl", "--json")[1])["events"] == 90


def test_two_jobs_on_one_device_at_once_fail_the_check(run, turning):
    turning.append(
        turning.event(
            EventType.GRANT,
            turning.now_s - 20,
            job="j-000001",
            iteration=9,
            device="r0/0",
            epoch=1,
            seq=99,
            attempt=1,
        )
    )
    code, out, err = run("trace", "check", "g-000001", "--json")
    assert (code, out) == (7, "")
    error = json.loads(err.splitlines()[-1])
    assert error["code"] == "trace.unsound"
    assert any("overlap" in problem for problem in error["details"]["problems"])


def test_without_events_there_is_nothing_sound_about_a_trace(run, filled, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    code, out, err = run("trace", "check", "empty.jsonl")
    assert (code, out) == (2, "")
    assert "empty.jsonl: no events" in err
    code, out, err = run("trace", "check", "g-000001")
    assert (code, out) == (4, "")
    assert "g-000001: no events yet" in err


def test_a_file_that_is_no_trace_names_its_line(run, filled, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"type": "phase.start"}\n')
    code, _, err = run("trace", "check", "bad.jsonl")
    assert code == 2
    assert "bad.jsonl:1: not an event" in err


def test_an_exported_trace_has_a_track_per_device_and_no_overlap(run, turning, tmp_path):
    assert run("trace", "export", "g-000001", "--out", "t.json")[0] == 0
    trace = json.loads((tmp_path / "t.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 20
    for track in {(one["pid"], one["tid"]) for one in slices}:
        own = sorted((one for one in slices if (one["pid"], one["tid"]) == track), key=_start)
        for before, after in itertools.pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"]
    names = {
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"
    }
    assert {"r0/0", "t0/0"} <= names
    begun = [event for event in trace["traceEvents"] if event["ph"] == "b"]
    ended = [event for event in trace["traceEvents"] if event["ph"] == "e"]
    assert len(begun) == len(ended) == 10


def _start(one):
    return one["ts"]


def test_members_are_charged_the_group_and_the_basis_is_told(run, filled):
    def shown():
        return json.loads(run("group", "show", "g-000001", "--json")[1])

    planned = shown()
    assert planned["charged_by"] == "planned"
    assert sum(one["usd_per_h"] for one in planned["members"]) == planned["usd_per_h"] > 0
    filled.rounds(12)
    measured = shown()
    assert measured["charged_by"] == "measured"
    assert sum(one["usd_per_h"] for one in measured["members"]) == planned["usd_per_h"]
    assert "charged as measured" in run("group", "show", "g-000001")[1]
