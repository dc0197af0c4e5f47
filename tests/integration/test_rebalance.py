"""Moving jobs between groups through the real store."""

from __future__ import annotations

import json

import pytest

from rmux.cli.main import main

CLUSTER = """
[pools.rollout]
kind = "rollout"
hardware = "cpu"
usd_per_device_h = 1.0
nodes = [{name = "r[0-1]", devices = 1, host_memory = "8GiB"}]

[pools.train]
kind = "train"
hardware = "cpu"
usd_per_device_h = 4.0
nodes = [{name = "t[0-1]", devices = 1, host_memory = "8GiB"}]
"""
SPEC = """
name = "{name}"
engine = "emulated"
slo = {slo}

[emulated]
init = "60s"
rollout = "50s"
train = "50s"
sync = "0s"
"""


@pytest.fixture
def rmux(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RMUX_STORE", f"sqlite:///{tmp_path}/state.db")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    for name, slo in (("a", 2.0), ("b", 1.0), ("c", 2.0)):
        (tmp_path / f"{name}.toml").write_text(SPEC.format(name=name, slo=slo))

    def call(*argv):
        code = main(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    assert call("store", "init")[0] == 0
    assert call("pool", "add", "-f", "cluster.toml")[0] == 0
    return call


def groups_of(rmux):
    _, out, _ = rmux("job", "ls", "--json")
    return {job["name"]: job["group"] for job in json.loads(out)["items"]}


def apart(rmux):
    """Jobs a and c in groups of their own."""
    assert rmux("job", "submit", "a.toml", "--margin", "0.5")[0] == 0
    assert rmux("job", "submit", "c.toml", "--margin", "1.5")[0] == 0


def test_a_plan_names_moves_and_moves_nobody(rmux):
    apart(rmux)
    before = groups_of(rmux)
    assert len(set(before.values())) == 2
    code, out, err = rmux("place", "rebalance", "--json")
    plan = json.loads(out)
    assert code == 0
    assert (plan["dry_run"], len(plan["moves"]), plan["saves_usd_per_h"]) == (True, 1, 5.0)
    assert "plan only" in err
    assert groups_of(rmux) == before


def test_committed_moves_put_both_jobs_into_one_group(rmux):
    apart(rmux)
    code, _, err = rmux("place", "rebalance", "--commit", "--yes")
    assert (code, "moved" in err) == (0, True)
    assert len(set(groups_of(rmux).values())) == 1
    code, out, _ = rmux("place", "rebalance", "--json")
    again = json.loads(out)
    assert (again["moves"], again["usd_per_h_before"]) == ([], 5.0)


def test_nobody_is_moved_without_consent(rmux):
    apart(rmux)
    code, _, err = rmux("place", "rebalance", "--commit")
    assert code == 2
    assert "would move 1 job" in err
    assert len(set(groups_of(rmux).values())) == 2


def test_a_move_that_does_not_pay_back_is_left(rmux):
    apart(rmux)
    code, out, err = rmux("place", "rebalance", "--payback", "60s", "--json")
    assert (code, json.loads(out)["moves"]) == (0, [])
    assert "no move pays back within" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--payback", "0s"), "needs some time"),
        (("--payback", "soon"), "soon"),
        (("--commit", "--dry-run"), "exclude each other"),
    ],
)
def test_flags_that_cannot_be_used_are_told(rmux, flags, said):
    code, out, err = rmux("place", "rebalance", *flags)
    assert (code, out) == (2, "")
    assert said in err
