"""`rmux place` on a real store in a temporary folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rmux.cli import place_views
from rmux.cluster import Tenant
from rmux.ids import GroupId, JobId
from rmux.job import Reason
from rmux.place.candidates import Kind
from rmux.place.decision import Candidate, Decision, Verdict
from rmux.store import pools
from rmux.store.engine import Store


def emulated(name, rollout="4s", train="4s", slo=2.0, devices=1):
    return (
        f'name = "{name}"\nengine = "emulated"\nslo = {slo}\n'
        f"[rollout]\ndevices = {devices}\n"
        f'[emulated]\nrollout = "{rollout}"\ntrain = "{train}"\nsync = "0s"\n'
    )


def fill(folder, samples):
    """A store with one rollout node r0 and one train node t0."""
    store = Store.create(f"sqlite:///{folder}/state/rmux.db")
    with store.write() as conn:
        pools.save(conn, samples.cluster(rollout=1, train=1))
    store.close()


@pytest.fixture
def cluster(tmp_path, monkeypatch, samples):
    """An initialised store with one rollout and one train node; specs a, b and wide."""
    monkeypatch.setenv("RMUX_STORE", f"sqlite:///{tmp_path}/state/rmux.db")
    (tmp_path / "a.toml").write_text(emulated("a"))
    (tmp_path / "b.toml").write_text(emulated("b"))
    (tmp_path / "tight.toml").write_text(emulated("tight", rollout="3s", train="3s", slo=1.0))
    (tmp_path / "wide.toml").write_text(emulated("wide", devices=3))
    fill(tmp_path, samples)


def test_a_plan_says_place_price_period_and_slowdown_and_reserves_nothing(cluster, run):
    code, out, err = run("place", "a.toml")
    assert code == 0
    assert out.splitlines() == [
        "new group (isolated group), +7.13 USD/h",
        "  period    8 s, bound by cycle of a",
        "  slowdown  a 1.00 (2.00)",
        "  devices   rollout r0/0  train t0/0",
    ]
    assert "nothing is reserved" in err
    assert run("job", "ls", "-o", "name")[1] == ""


def test_a_plan_keeps_no_profile(cluster, run):
    run("place", "a.toml")
    assert run("profile", "ls", "-o", "name")[1] == ""


def test_explain_lists_every_candidate_with_its_verdict(cluster, run):
    run("job", "submit", "a.toml")
    code, out, _ = run("place", "b.toml", "--explain")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == [
        *("CANDIDATE", "+USD/H", "PERIOD", "BOUND", "BY", "SLOWDOWN", "(LIMIT)"),
        *("HOST", "MEM", "FREE", "AFTER", "VERDICT"),
    ]
    assert lines[1].startswith("*  join g-")
    assert "0.00     8 s" in lines[1]
    assert "chosen: cheapest feasible" in lines[1]
    assert "new group" in lines[-1]
    assert "refused: capacity: needs 1 device; rollout pool rollout has 0 of 1 free" in lines[-1]


def test_explain_in_json_carries_the_same_numbers(cluster, run):
    run("job", "submit", "a.toml")
    code, out, _ = run("place", "b.toml", "--explain", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["schema"], found["dry_run"], found["feasible"]) == (
        "rmux.placement/v1",
        True,
        True,
    )
    best = found["candidates"][found["chosen"]]
    assert (best["verdict"], best["marginal_usd_per_h"]) == ("chosen", 0.0)
    assert best["period"]["period_s"] == 8.0
    assert [one["name"] for one in best["slo"]] == ["a", "b"]
    assert all(one["ok"] for one in best["slo"])
    assert {one["node"] for one in best["host_mem"]} == {"r0", "t0"}
    assert found["profile"]["schema"] == "rmux.profile/v1"
    refused = found["candidates"][-1]
    assert (refused["verdict"], refused["reasons"][0]["code"]) == ("refused", "capacity")
    assert [reason["code"] for reason in best["reasons"]] == ["cycle", "cap"]
    assert best["reasons"][0]["numbers"] == {"binding_s": 8.0, "period_s": 8.0}
    assert (best["reasons"][1]["subject"], best["reasons"][1]["numbers"]["cap_s"]) == ("a", 16.0)


def test_a_refused_candidate_names_the_binding_term_and_whose_cap_it_breaks(cluster, run):
    run("job", "submit", "tight.toml")
    code, out, _ = run("place", "b.toml", "--explain", "--json")
    reasons = json.loads(out)["candidates"][0]["reasons"]
    assert code == 3
    assert [reason["code"] for reason in reasons] == ["slo", "cycle", "cap"]
    assert reasons[0]["subject"] == "tight"
    assert reasons[0]["numbers"] == {
        "planned_s": 8.0,
        "cap_s": 6.0,
        "slowdown": pytest.approx(8 / 6),
        "limit": 1.0,
    }


def test_no_place_is_exit_3_with_the_bound_that_fails(cluster, run):
    run("job", "submit", "a.toml")
    code, out, err = run("place", "tight.toml")
    assert (code, out) == (3, "")
    assert "rmux: error [place.infeasible]: no placement for tight: group g-" in err
    assert "slows tight 1.33x where 1.00x is allowed; bound by cycle of a" in err
    code, out, _ = run("place", "tight.toml", "--explain")
    assert code == 3
    assert "refused: slo" in out


def test_explaining_why_there_is_no_place_ends_with_the_error_in_json_too(cluster, run):
    run("job", "submit", "a.toml")
    code, out, err = run("place", "tight.toml", "--explain", "--json")
    error = json.loads(err.splitlines()[-1])
    assert (code, json.loads(out)["schema"]) == (3, "rmux.placement/v1")
    assert (error["schema"], error["code"]) == ("rmux.error/v1", "place.infeasible")


def test_the_advice_where_there_is_no_place_can_be_typed_as_it_stands(cluster, run):
    error = json.loads(run("place", "wide.toml", "--json")[2].splitlines()[-1])
    assert error["hint"] == "rmux place wide.toml --explain"
    error = json.loads(run("job", "submit", "wide.toml", "--json")[2].splitlines()[-1])
    assert error["hint"] == "rmux place wide.toml --explain"


def test_a_smaller_promise_makes_room(cluster, run):
    run("job", "submit", "a.toml")
    assert run("place", "tight.toml", "--slo", "1.5")[0] == 0
    code, _, err = run("place", "tight.toml", "--slo", "0.5")
    assert code == 2
    assert "--slo is 0.5" in err


def test_the_rule_and_the_margin_are_passed_on(cluster, run):
    code, out, _ = run("place", "a.toml", "--rule", "paper", "--margin", "0.1", "--json")
    found = json.loads(out)
    assert (code, found["rule"], found["margin"]) == (0, "paper", 0.1)
    assert run("place", "a.toml", "--rule", "luck")[0] == 2


def test_only_the_group_asked_for_is_looked_at(cluster, run):
    _, out, _ = run("job", "submit", "a.toml", "--json")
    group = json.loads(out)["group"]
    _, out, _ = run("place", "b.toml", "--group", group, "--json")
    assert [one["group"] for one in json.loads(out)["candidates"]] == [group]
    assert run("place", "b.toml", "--group", "g-nosuch")[0] == 4


def test_name_prints_where_it_would_go(cluster, run):
    assert run("place", "a.toml", "-o", "name")[1] == "new\n"


def refused(group, code):
    return Candidate(
        kind=Kind.PACK,
        group_id=GroupId(group),
        verdict=Verdict.REFUSED,
        reason=Reason(code=code, message="why"),
    )


def test_beyond_five_refusals_only_their_reasons_are_counted():
    codes = ["slo"] * 4 + ["link"] + ["residency", "residency", "hardware"]
    decision = Decision(
        job_id=JobId("j-1"),
        assignment=None,
        candidates=tuple(refused(f"g-{n}", code) for n, code in enumerate(codes)),
        chosen=None,
        reason=Reason(code="slo", message="why"),
        never_fits=False,
        revision=1,
    )
    shown = list(place_views.explain_table(decision, wide=False).lines())
    assert len(shown) == 1 + 5
    assert "join g-0" in shown[1]
    assert place_views.left_out(decision) == "3 more refused: residency 2, hardware 1 (-o wide)"
    assert len(list(place_views.explain_table(decision, wide=True).lines())) == 1 + 8


def test_without_pools_the_next_step_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setenv("RMUX_STORE", f"sqlite:///{tmp_path}/state/rmux.db")
    (tmp_path / "a.toml").write_text(emulated("a"))
    run("store", "init")
    code, _, err = run("place", "a.toml")
    assert code == 4
    assert "rmux pool add -f cluster.toml" in err


def test_a_deadline_takes_a_dearer_place_that_meets_it(tmp_path, cluster, run, samples):
    store = Store.open(f"sqlite:///{tmp_path}/state/rmux.db")
    with store.write() as conn:
        pools.save(conn, samples.cluster(rollout=2, train=2), replace=True)
    store.close()
    (tmp_path / "long.toml").write_text(emulated("long", rollout="9s", train="9s"))
    quick = emulated("quick", rollout="2s", train="2s", slo=5.0)
    (tmp_path / "quick.toml").write_text(quick)
    (tmp_path / "due.toml").write_text('deadline = "100s"\n' + quick)
    (tmp_path / "late.toml").write_text('deadline = "30s"\n' + quick)
    run("job", "submit", "long.toml")
    assert "new group" not in run("place", "quick.toml")[1]
    code, out, err = run("place", "due.toml", "--explain")
    assert code == 0
    assert "would end the job after its deadline" in out
    assert "new group" in run("place", "due.toml")[1]
    assert "deadline:" not in err
    assert "deadline: ends 40.2 s after submission at the earliest" in run("place", "late.toml")[2]
    assert "isolated group" in run("job", "submit", "due.toml")[1]


def test_a_plan_tells_the_quota_that_a_submission_would_meet(tmp_path, cluster, run):
    store = Store.open(f"sqlite:///{tmp_path}/state/rmux.db")
    with store.write() as conn:
        tenants = (Tenant(name="math", quota_usd_per_h=5.0),)
        pools.save(conn, replace(pools.load(conn), tenants=tenants), replace=True)
    store.close()
    (tmp_path / "mine.toml").write_text('tenant = "math"\n' + emulated("mine"))
    code, _, err = run("place", "mine.toml")
    assert code == 0
    assert "quota: quota of tenant math is 5.00 USD/h, charged 0.00 USD/h now" in err
    assert "quota:" not in run("place", "a.toml")[2]
