from __future__ import annotations

import dataclasses
import json

import pytest

from rmux.store import groups, jobs, pools, schema
from rmux.store.documents import to_document

CLUSTER = """
[pools.spare]
kind = "rollout"
hardware = "cpu"
usd_per_device_h = 1.0

[[pools.spare.nodes]]
name = "a[0-1]"
device = "cpu"
cores = [0]
host_memory = "4GiB"
"""


def test_a_file_of_pools_is_added_once(run, filled, tmp_path):
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    code, out, _ = run("pool", "add", "-f", "cluster.toml", "--json")
    assert (code, json.loads(out)["changed"], json.loads(out)["names"]) == (0, True, ["spare"])
    assert run("pool", "ls", "-o", "name")[1].split() == ["rollout", "train", "spare"]
    assert json.loads(run("pool", "add", "-f", "cluster.toml", "--json")[1])["changed"] is False
    assert run("pool", "rm", "spare")[0] == 0
    assert run("pool", "ls", "-o", "name")[1].split() == ["rollout", "train"]


def test_a_file_that_would_take_a_held_node_away_is_a_conflict(run, filled, tmp_path):
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    code, _, err = run("pool", "add", "-f", "cluster.toml", "--replace")
    assert code == 5
    assert "group g-000001 holds it" in err


def test_ls_counts_what_is_free_and_held(run, filled):
    code, out, _ = run("pool", "ls", "--json")
    listed = json.loads(out)
    assert code == 0
    assert [pool["name"] for pool in listed["items"]] == ["rollout", "train"]
    rollout = listed["items"][0]
    assert (rollout["num_nodes"], rollout["free_nodes"]) == (2, 1)
    assert [node["group"] for node in rollout["nodes"]] == ["g-000001", None]
    assert run("pool", "ls", "-o", "name")[1] == "rollout\ntrain\n"


def test_show_lists_nodes_and_an_unknown_pool_is_exit_4(run, filled):
    assert "r1" in run("pool", "show", "rollout")[1]
    first, second = json.loads(run("pool", "show", "rollout", "--json")[1])["nodes"]
    assert first["planned_bytes"] > 0 == second["planned_bytes"], "of the jobs placed on it"
    assert run("pool", "show", "rollouts")[0] == 4


def test_drain_and_undrain_tell_whether_anything_changed(run, filled):
    def changed(*argv):
        code, out, _ = run(*argv, "--json")
        assert code == 0
        return json.loads(out)["changed"]

    assert changed("pool", "drain", "r1", "t1", "--reason", "ecc") is True
    assert changed("pool", "drain", "r1", "--reason", "ecc") is False
    assert "ecc" in run("pool", "show", "rollout")[1]
    assert changed("pool", "undrain", "r1") is True
    assert changed("pool", "undrain", "r1") is False
    assert run("pool", "drain", "x9")[0] == 4


def test_one_unknown_node_among_several_drains_none(run, filled):
    assert run("pool", "drain", "r1", "x9")[0] == 4
    assert json.loads(run("pool", "show", "rollout", "--json")[1])["drained_nodes"] == 0


def test_a_dry_run_says_what_would_change_and_changes_nothing(run, filled):
    code, out, _ = run("pool", "rm", "train", "--dry-run")
    assert (code, out) == (5, "")  # a group holds a node of it
    code, out, _ = run("pool", "drain", "r1", "--dry-run", "--json")
    assert (code, json.loads(out)["changed"], json.loads(out)["dry_run"]) == (0, True, True)
    assert json.loads(run("pool", "show", "rollout", "--json")[1])["drained_nodes"] == 0


def test_undraining_places_the_job_that_waited_for_it(run, filled):
    run("pool", "drain", "r1", "t1")
    with filled.store.read() as conn:
        assert jobs.get(conn, "j-000003").state == "pending"
    run("pool", "undrain", "r1", "t1")
    with filled.store.read() as conn:
        placed = jobs.get(conn, "j-000003")
    assert (placed.state, placed.group_id is not None) == ("placed", True)


SHARED = """
[policy]
ageing = "10m"
max_members = 2

[tenants.math]
quota_usd_per_h = 40.0
weight = 2.0

[tenants.code]
"""


def share(run, tmp_path, filled):
    """Policy and tenants beside the pools; `math` and `wide` are jobs of tenant math.

    `wide` waits: the group is full, and t1 is drained."""
    (tmp_path / "shared.toml").write_text(CLUSTER + SHARED)
    with filled.store.write() as conn:
        pools.set_drained(conn, "t1", "ecc")
    assert run("pool", "add", "-f", "shared.toml")[0] == 0
    with filled.store.write() as conn:
        for job_id in ("j-000001", "j-000003"):
            spec = dataclasses.replace(jobs.get(conn, job_id).spec, tenant="math")
            changed = schema.jobs.update().where(schema.jobs.c.id == job_id)
            conn.execute(changed.values(spec=to_document(spec)))


def test_adding_a_file_tells_its_policy_and_tenants(run, filled, tmp_path):
    (tmp_path / "shared.toml").write_text(CLUSTER + SHARED)
    err = run("pool", "add", "-f", "shared.toml")[2]
    assert "policy: max_members 2, ageing_s 600.0; tenants: math, code" in err
    (tmp_path / "plain.toml").write_text(CLUSTER)
    assert "policy" not in run("pool", "add", "-f", "plain.toml")[2]
    assert "policy: max_members 2" in run("pool", "ls")[2]


def test_ls_and_show_tell_the_policy(run, filled, tmp_path):
    assert json.loads(run("pool", "ls", "--json")[1])["policy"]["ageing_s"] == 0.0
    assert "policy: as by default" in run("pool", "ls")[2]
    share(run, tmp_path, filled)
    for found in (
        json.loads(run("pool", "ls", "--json")[1]),
        json.loads(run("pool", "show", "spare", "--json")[1]),
    ):
        assert found["policy"]["ageing_s"] == 600.0
        assert found["policy"]["max_members"] == 2


def test_tenants_are_charged_the_bill_and_nothing_else(run, filled, tmp_path):
    share(run, tmp_path, filled)
    code, out, err = run("pool", "tenants", "--json")
    found = json.loads(out)
    assert (code, found["schema"]) == (0, "rmux.tenant_list/v1")
    by_name = {item["name"]: item for item in found["items"]}
    assert list(by_name) == ["math", "code", ""]
    assert (by_name["math"]["placed_jobs"], by_name["math"]["waiting_jobs"]) == (1, 1)
    assert (by_name["math"]["quota_usd_per_h"], by_name["math"]["weight"]) == (40.0, 2.0)
    assert (by_name["code"]["usd_per_h"], by_name["code"]["declared"]) == (0.0, True)
    assert by_name[""]["placed_jobs"] == 1
    price = json.loads(run("group", "show", "g-000001", "--json")[1])["usd_per_h"]
    assert sum(item["usd_per_h"] for item in found["items"]) == found["bill_usd_per_h"] == price
    assert sum(item["share"] for item in found["items"]) == pytest.approx(1.0)
    assert f"bill {price:.2f} USD/h" in err


def test_tenants_are_rows_and_names(run, filled, tmp_path):
    share(run, tmp_path, filled)
    lines = run("pool", "tenants")[1].splitlines()
    assert lines[0].split() == ["TENANT", "QUOTA", "WEIGHT", "PLACED", "WAITING", "USD/H", "SHARE"]
    assert lines[1].split()[:3] == ["math", "40.00", "2"]
    assert run("pool", "tenants", "-o", "name")[1] == "math\ncode\n"


def test_charges_are_measured_once_every_job_has_held_devices(run, filled, tmp_path):
    share(run, tmp_path, filled)

    def of_math():
        items = json.loads(run("pool", "tenants", "--json")[1])["items"]
        return next(item for item in items if item["name"] == "math")

    before = of_math()
    assert before["usd_per_h"] == before["planned_usd_per_h"]
    with filled.store.read() as conn:
        member = groups.get(conn, "g-000001").member("j-000001")
    assert member.tenant == "math"
    filled.rounds(12, rollout_s=8.0, train_s=1.0)
    after = of_math()
    assert after["planned_usd_per_h"] == before["planned_usd_per_h"]
    shown = json.loads(run("group", "show", "g-000001", "--json")[1])
    assert shown["charged_by"] == "measured"
    assert after["usd_per_h"] == shown["members"][0]["usd_per_h"]
