"""`rmux profile` on a real store in a temporary folder; nothing is measured here."""

from __future__ import annotations

import json

import pytest

from rmux.profile.measure import Samples
from rmux.store import pools
from rmux.store.engine import Store

SPEC = """
name = "tiny"
[model]
path = "model"
[task]
prompts = "tasks.py:prompts"
[reward]
function = "tasks.py:reward"
[rollout]
max_tokens = 384
max_prompt_tokens = 8
"""
CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "vocab_size": 64,
    "tie_word_embeddings": True,
}


def fill(folder, samples):
    """A store with one rollout node r0 and one train node t0."""
    store = Store.create(f"sqlite:///{folder}/state/rmux.db")
    with store.write() as conn:
        pools.save(conn, samples.cluster(rollout=1, train=1))
    store.close()


@pytest.fixture
def spec(tmp_path, monkeypatch, samples):
    monkeypatch.setenv("RMUX_STORE", f"sqlite:///{tmp_path}/state/rmux.db")
    (tmp_path / "tiny.toml").write_text(SPEC)
    (tmp_path / "tasks.py").write_text("def prompts(rng, count): ...\ndef reward(p, r): ...\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    fill(tmp_path, samples)
    return "tiny.toml"


def test_a_spec_is_estimated_and_the_estimate_kept(spec, run):
    code, out, err = run("profile", spec)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0][:2] == ["PHASE", "RUNS"]
    assert [row[0] for row in rows[1:]] == ["rollout", "train", "sync", "checkpoint"]
    assert "estimated; to measure: rmux profile run --measure tiny.toml" in err
    code, listed, _ = run("profile", "ls", "--json")
    (kept,) = json.loads(listed)["items"]
    assert kept["source"] == "analytic"
    assert 2.0 < kept["phases"][0]["worst_case_s"] < 4.0
    code, shown, _ = run("profile", "show", kept["id"], "--json")
    assert json.loads(shown)["phases"] == kept["phases"]


def test_the_verb_run_and_the_bare_spec_are_the_same(spec, run):
    _, bare, _ = run("profile", spec, "-o", "name")
    _, verb, _ = run("profile", "run", spec, "-o", "name")
    assert bare == verb


def test_refresh_makes_a_new_one_and_no_save_keeps_none(spec, run):
    _, first, _ = run("profile", spec, "-o", "name")
    _, second, _ = run("profile", spec, "--refresh", "-o", "name")
    assert first != second
    run("profile", spec, "--refresh", "--no-save")
    assert len(run("profile", "ls", "-o", "name")[1].split()) == 2


def test_measuring_runs_the_probe_and_its_result_wins(spec, run, monkeypatch):
    from rmux.run import probe

    asked = {}

    def run_elsewhere(self, spec, *, cluster, iterations, on_progress=None):
        asked.update(name=spec.name, iterations=iterations)
        on_progress("iteration 1 of 2")
        return Samples(rollout_s=(3.0, 3.5), train_s=(2.0, 2.1), engines=(("vllm", "0.32"),))

    monkeypatch.setattr(probe.GroupProbe, "run", run_elsewhere)
    run("profile", spec)
    code, out, err = run("profile", spec, "--measure", "--iterations", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert asked == {"name": "tiny", "iterations": 2}
    assert "iteration 1 of 2" in err
    assert (found["source"], found["phases"][0]["worst_case_s"]) == ("measured", 3.5)
    assert found["engines"] == [{"name": "vllm", "version": "0.32"}]
    assert json.loads(run("place", spec, "--json")[1])["profile"]["id"] == found["id"]


def test_an_unknown_profile_is_exit_4(spec, run):
    assert run("profile", "show", "p-nosuch")[0] == 4


def test_a_spec_that_is_not_there_is_a_usage_error(spec, run):
    code, _, err = run("profile", "./nosuch.toml")
    assert code == 2
    assert "nosuch.toml" in err
