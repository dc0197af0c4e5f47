from __future__ import annotations

import json

from rmux.store import jobs

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
