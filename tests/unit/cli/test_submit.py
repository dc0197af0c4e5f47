"""`rmux job submit` on a real store in a temporary folder."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from dataclasses import replace

import pytest

from rmux.cluster import Policy, Tenant
from rmux.store import pools
from rmux.store.engine import Store

REAL = """
name = "real"
[model]
path = "model"
[task]
prompts = "tasks.py:prompts"
[reward]
function = "tasks.py:reward"
"""
TASKS = "def prompts(rng, count): return []\ndef reward(prompt, response): return 0.0\n"
CONFIG = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}


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
def folder(tmp_path, monkeypatch, samples):
    monkeypatch.setenv("RMUX_STORE", f"sqlite:///{tmp_path}/state/rmux.db")
    files = {
        "a.toml": emulated("a"),
        "b.toml": emulated("b", rollout="3s"),
        "tight.toml": emulated("tight", rollout="3s", train="3s", slo=1.0),
        "wide.toml": emulated("wide", devices=3),
        "real.toml": REAL,
        "tasks.py": TASKS,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    fill(tmp_path, samples)
    return tmp_path


def jobs(run):
    return run("job", "ls", "-o", "name")[1].split()


def test_a_job_is_placed_and_the_next_commands_are_named(folder, run):
    code, out, err = run("job", "submit", "a.toml")
    (job,) = jobs(run)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith(f"{job} a PLACED in g-")
    assert lines[1:4] == [
        "new group (isolated group), +7.13 USD/h",
        "  period    8 s, bound by cycle of a",
        "  slowdown  a 1.00 (2.00)",
    ]
    group = lines[0].split()[-1]
    assert f"next: rmux group up {group}" in err


def test_the_second_job_joins_the_first_for_nothing(folder, run):
    run("job", "submit", "a.toml")
    code, out, _ = run("job", "submit", "b.toml", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["schema"], found["created"], found["state"]) == (
        "rmux.submission/v1",
        True,
        "placed",
    )
    best = found["placement"]["candidates"][found["placement"]["chosen"]]
    assert (best["group"], best["marginal_usd_per_h"]) == (found["group"], 0.0)


def test_a_job_without_room_now_stays_pending_with_its_reason_and_exits_0(folder, run):
    run("job", "submit", "a.toml")
    code, out, err = run("job", "submit", "tight.toml")
    assert code == 0
    assert " tight PENDING" in out
    assert "no place: group g-" in out
    job = out.split()[0]
    assert f"next: rmux job why {job}" in err
    reason = json.loads(run("job", "show", job, "--json")[1])["reason"]
    assert reason["code"] == "slo"


def test_a_job_that_memory_has_no_room_for_is_told_the_whole_arithmetic(folder, run):
    (folder / "held.toml").write_text(emulated("held") + 'resident = "5GiB"\n')
    (folder / "more.toml").write_text(emulated("more") + 'resident = "3GiB"\n')
    run("job", "submit", "held.toml")
    sums = (
        "short by 1 GiB of host memory on r0 (limit 7 GiB): held 5 GiB parked, 0 B for the largest "
        "switch, 3 GiB asked, 2 GiB left"
    )
    code, out, _ = run("place", "more.toml", "--explain")
    assert code == 3
    assert sums in out
    code, out, _ = run("job", "submit", "more.toml")
    assert code == 0
    assert "no place: group g-" in out
    assert sums in out
    job = out.split()[0]
    assert sums in run("job", "why", job)[1]
    assert json.loads(run("job", "show", job, "--json")[1])["reason"]["code"] == "residency"


def test_a_job_that_can_never_fit_is_exit_3_and_leaves_nothing(folder, run):
    code, out, err = run("job", "submit", "wide.toml")
    assert (code, out) == (3, "")
    assert "needs 3 devices; rollout pool rollout has 1 of 1 free" in err
    assert jobs(run) == []
    assert run("profile", "ls", "-o", "name")[1] == ""


def test_the_same_name_and_spec_give_the_same_job(folder, run):
    _, first, _ = run("job", "submit", "a.toml", "--name", "x", "--json")
    code, again, _ = run("job", "submit", "a.toml", "--name", "x", "--json")
    assert code == 0
    assert json.loads(again)["created"] is False
    assert json.loads(again)["id"] == json.loads(first)["id"]
    code, _, err = run("job", "submit", "b.toml", "--name", "x")
    assert code == 5
    assert "emulated.rollout_s: 3.0 here, 4.0 there" in err
    assert len(jobs(run)) == 1


def test_the_name_in_the_spec_counts_like_one_on_the_command_line(folder, run):
    _, first, _ = run("job", "submit", "a.toml", "--json")
    code, again, err = run("job", "submit", "a.toml", "--json")
    assert (code, json.loads(again)["created"]) == (0, False)
    assert json.loads(again)["id"] == json.loads(first)["id"]
    assert "no other job is made. --name OTHER makes one" in err
    (folder / "longer.toml").write_text("iterations = 99\n" + emulated("a"))
    err = run("job", "submit", "longer.toml")[2]
    assert "it keeps its own iterations: 99 here, 10 there" in err
    (folder / "other.toml").write_text(emulated("a", rollout="3s"))
    code, out, err = run("job", "submit", "other.toml")
    assert (code, out) == (5, "")
    assert "emulated.rollout_s: 3.0 here, 4.0 there" in err
    assert "--name OTHER" in err
    assert len(jobs(run)) == 1
    assert run("job", "submit", "other.toml", "--name", "c")[0] == 0
    run("job", "cancel", "a")
    assert json.loads(run("job", "submit", "a.toml", "--json")[1])["created"] is True


def test_an_idempotency_key_makes_one_job(folder, run):
    _, first, _ = run("job", "submit", "a.toml", "--idempotency-key", "ci-7", "-o", "name")
    _, again, _ = run("job", "submit", "a.toml", "--idempotency-key", "ci-7", "-o", "name")
    assert first == again
    assert run("job", "submit", "b.toml", "--idempotency-key", "ci-7")[0] == 5
    key = ("--idempotency-key", "ci-8", "--name", "a8")
    _, other, _ = run("job", "submit", "a.toml", *key, "-o", "name")
    assert other != first


def test_a_name_that_is_none_is_refused(folder, run):
    code, _, err = run("job", "submit", "a.toml", "--name", "no/slash")
    assert code == 2
    assert "--name is 'no/slash'" in err


def test_a_dry_run_decides_all_and_stores_nothing(folder, run):
    database = folder / "state" / "rmux.db"
    before = database.read_bytes()
    code, out, err = run("job", "submit", "a.toml", "--dry-run", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["dry_run"], found["created"], found["state"]) == (True, False, "placed")
    assert "nothing was stored" in err
    assert jobs(run) == []
    assert database.read_bytes() == before


def test_a_placement_is_taken_back_at_its_own_revision_only(folder, run, monkeypatch):
    _, placement, _ = run("place", "a.toml", "--json")
    (folder / "placement.json").write_text(placement)
    monkeypatch.setattr(sys, "stdin", io.StringIO(placement))
    code, _, _ = run("job", "submit", "a.toml", "--placement", "-")
    assert code == 0
    again = ("--placement", "placement.json", "--name", "a2")
    code, _, err = run("job", "submit", "a.toml", *again)
    assert code == 5
    assert "place.stale" in err
    code, _, err = run("job", "submit", "b.toml", "--placement", "placement.json")
    assert code == 5
    assert "another spec" in err
    (folder / "bad.json").write_text("{}")
    assert run("job", "submit", "a.toml", "--placement", "bad.json")[0] == 2


def test_a_real_job_is_checked_before_it_is_stored(folder, run):
    assert run("job", "submit", "real.toml")[0] == 0
    assert len(jobs(run)) == 1


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("import nosuchmodule\n" + TASKS, "nosuchmodule"),
        ("def prompts(rng, count): ...\n", "reward"),
        ("def prompts(:\n", "SyntaxError"),
    ],
)
def test_functions_that_cannot_be_imported_stop_the_submission(folder, run, tasks, said):
    (folder / "tasks.py").write_text(tasks)
    code, _, err = run("job", "submit", "real.toml")
    assert code == 2
    assert said in err
    assert jobs(run) == []


def test_a_model_that_cannot_be_read_stops_the_submission(folder, run):
    (folder / "model" / "config.json").write_text("{")
    code, _, err = run("job", "submit", "real.toml")
    assert code == 2
    assert "is not JSON" in err


def test_missing_engines_are_exit_9_and_name_the_extra(folder, run, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name)
    )
    code, _, err = run("job", "submit", "real.toml")
    assert code == 9
    assert "needs vllm" in err
    assert "pip install 'rmux[cpu]'" in err


def test_a_script_with_a_syntax_error_is_named_with_its_line(folder, run):
    (folder / "own.py").write_text("x = 1\ndef f(:\n")
    (folder / "own.toml").write_text('name = "own"\nscript = "own.py"\n[model]\npath = "model"\n')
    code, _, err = run("job", "submit", "own.toml")
    assert code == 2
    assert "own.py:2:" in err


def test_waiting_ends_as_soon_as_the_job_cannot_be_done(folder, run, monkeypatch):
    from rmux.cli import job_wait
    from rmux.store import jobs as stored

    def cancel_then_wait(store, texts, condition, **_):
        with store.write() as conn:
            stored.set_state(conn, texts[0], stored.JobState.CANCELLED)
        return wait(store, texts, condition)

    wait = job_wait.wait
    monkeypatch.setattr(job_wait, "wait", cancel_then_wait)
    code, _, err = run("job", "submit", "a.toml", "--wait")
    assert code == 6
    assert "cancelled" in err


def declare(folder, *tenants, **policy):
    """Tenants and policy beside the pools of the store."""
    store = Store.open(f"sqlite:///{folder}/state/rmux.db")
    with store.write() as conn:
        cluster = replace(pools.load(conn), tenants=tenants, policy=Policy(**policy))
        pools.save(conn, cluster, replace=True)
    store.close()


def test_flags_stand_in_for_keys_of_the_spec(folder, run):
    flags = ("--tenant", "math", "--priority", "7", "--deadline", "48h")
    job = json.loads(run("job", "submit", "a.toml", *flags, "--json")[1])["id"]
    shown = json.loads(run("job", "show", job, "--json")[1])
    assert (shown["tenant"], shown["priority"], shown["deadline_s"]) == ("math", 7, 172800.0)
    text = run("job", "show", job)[1]
    assert "tenant     math" in text
    assert "(2d00h after submission)" in text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--priority", "5000"), "--priority Input should be less than or equal to 1000"),
        (("--tenant", "a/b"), "--tenant"),
        (("--deadline", "soon"), "--deadline"),
        (("--name", "no name"), "--name is 'no name'"),
    ],
)
def test_a_flag_that_no_spec_could_say_is_a_usage_error(folder, run, flags, told):
    code, out, err = run("job", "submit", "a.toml", *flags)
    assert (code, out) == (2, "")
    assert told in err
    assert jobs(run) == []


def test_a_tenant_that_is_not_declared_is_a_usage_error_with_the_nearest(folder, run):
    declare(folder, Tenant(name="math"), Tenant(name="code"))
    code, out, err = run("job", "submit", "a.toml", "--tenant", "maths", "--json")
    assert (code, out) == (2, "")
    error = json.loads(err.splitlines()[-1])
    assert error["code"] == "tenant.unknown"
    assert "did you mean math?" in error["hint"]
    assert "code, math" in run("job", "submit", "a.toml", "--tenant", "zzz")[2]
    assert jobs(run) == []
    assert run("job", "submit", "a.toml", "--tenant", "math")[0] == 0
    assert run("job", "submit", "b.toml")[0] == 0


def test_with_no_tenant_declared_any_name_is_taken(folder, run):
    assert run("job", "submit", "a.toml", "--tenant", "whoever")[0] == 0
    items = json.loads(run("pool", "tenants", "--json")[1])["items"]
    assert [(one["name"], one["declared"]) for one in items] == [("whoever", False)]


def test_a_deadline_that_no_place_meets_is_told_and_the_job_is_placed(folder, run):
    code, out, err = run("job", "submit", "a.toml", "--deadline", "30s")
    assert code == 0
    assert " a PLACED" in out
    assert "deadline: ends 80.2 s after submission at the earliest, 50.2 s after" in err
    job = out.split()[0]
    assert "after its deadline of 30 s" in run("job", "why", job)[1]
    err = run("job", "submit", "b.toml", "--deadline", "1h")[2]
    assert "deadline" not in err


def test_why_names_the_slo_that_would_fit_and_it_does(folder, run):
    run("job", "submit", "a.toml")
    job = run("job", "submit", "tight.toml")[1].split()[0]
    found = json.loads(run("job", "why", job, "--json")[1])
    step = next(one for one in found["unblock"] if one["code"] == "slo")
    slo = step["numbers"]["slo"]
    assert f"slo: --slo {slo:.2f} would fit group g-" in "\n".join(found["next"])
    assert f"--slo {slo:.2f} would fit" in run("job", "why", job)[1]
    run("job", "cancel", job)
    below = run("job", "submit", "tight.toml", "--slo", f"{slo * 0.99:.4f}")[1]
    assert "PENDING" in below
    run("job", "cancel", below.split()[0])
    assert "PLACED" in run("job", "submit", "tight.toml", "--slo", str(slo))[1]


def test_why_counts_the_nodes_that_are_missing(folder, run):
    run("job", "submit", "a.toml")
    job = run("job", "submit", "tight.toml")[1].split()[0]
    step = next(
        one
        for one in json.loads(run("job", "why", job, "--json")[1])["unblock"]
        if one["code"] == "capacity"
    )
    assert step["numbers"] == {"rollout_nodes": 1.0, "train_nodes": 1.0}
    assert "1 more cpu node in rollout pool rollout" in step["message"]
