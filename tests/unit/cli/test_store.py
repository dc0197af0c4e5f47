from __future__ import annotations

import json

from rmux.store.schema import HEAD


def test_init_makes_a_store_and_repeating_it_changes_nothing(run, tmp_path):
    code, out, _ = run("store", "init", "--json")
    made = json.loads(out)
    assert (code, made["before"], made["now"], made["changed"]) == (0, None, HEAD, True)
    assert (tmp_path / ".local/state/rmux/rmux.db").stat().st_mode & 0o777 == 0o600
    code, out, _ = run("store", "init", "--json")
    assert (code, json.loads(out)["changed"]) == (0, False)


def test_without_a_store_every_reader_says_how_to_make_one(run, tmp_path):
    for argv in (("job", "ls"), ("group", "ls"), ("pool", "ls"), ("store", "status")):
        code, out, err = run(*argv)
        assert (code, out) == (10, "")
        assert "rmux store init" in err
    assert run("store", "migrate")[0] == 10
    assert not (tmp_path / ".local/state/rmux/rmux.db").exists()


def test_migrating_an_up_to_date_store_is_a_success(run, filled):
    code, out, _ = run("store", "migrate")
    assert code == 0
    assert f"is at schema {HEAD} already" in out


def test_status_counts_and_tells_who_holds_leases(run, filled):
    filled.serve()
    code, out, _ = run("store", "status", "--json")
    seen = json.loads(out)
    assert code == 0
    assert (seen["jobs"], seen["active_jobs"], seen["groups"]) == (3, 3, 1)
    assert seen["leases"] == [
        {"name": "group:g-000001", "owner": "here boot:1:2", "epoch": 1, "live": True}
    ]
    assert seen["size_bytes"] > 0
    assert "lease     group:g-000001" in run("store", "status")[1]


def test_a_store_of_a_newer_tool_is_refused_with_exit_12(run, filled):
    with filled.store.write() as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '0999'")
    code, out, err = run("job", "ls", "--json")
    assert (code, out) == (12, "")
    assert json.loads(err.splitlines()[-1])["code"] == "store.newer"
