"""What a user can get wrong: the real binary, its exit codes, and nothing stored by a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rmux

CLUSTER = Path(rmux.__file__).resolve().parent.parent / "examples" / "cpu" / "cluster.toml"
REAL = """\
name = "{name}"
[model]
path = "{model}"
[task]
prompts = "tasks.py:prompts"
[reward]
function = "{reward}"
"""
EMULATED = 'name = "{name}"\nengine = "emulated"\n'
LONG_ROLLOUT = 'slo = 1.0\n[emulated]\nrollout = "5s"\ntrain = "1s"\n'
FILES = {
    "typo.toml": EMULATED.format(name="typo") + "iteratons = 5\n",
    "low-slo.toml": EMULATED.format(name="low-slo") + "slo = 0.5\n",
    "async.toml": EMULATED.format(name="async") + "max_staleness = 2\n",
    "own.toml": 'name = "own"\nscript = "tasks.py"\nmax_staleness = 1\n',
    "wide.toml": EMULATED.format(name="wide") + "[rollout]\ndevices = 3\n",
    "first.toml": EMULATED.format(name="first") + LONG_ROLLOUT,
    "second.toml": EMULATED.format(name="second") + LONG_ROLLOUT,
    "real.toml": REAL.format(name="real", model="model", reward="tasks.py:reward"),
    "no-model.toml": REAL.format(name="no-model", model="gone", reward="tasks.py:reward"),
    "no-reward.toml": REAL.format(name="no-reward", model="model", reward="broken.py:reward"),
    "odd.toml": REAL.format(name="odd", model="odd", reward="tasks.py:reward"),
    "ragged.toml": REAL.format(name="ragged", model="model", reward="tasks.py:reward")
    + "[rollout]\nprompts = 6\nsamples_per_prompt = 4\n[train]\nmini_batch = 16\n",
    "few.toml": REAL.format(name="few", model="model", reward="tasks.py:reward")
    + "[train]\ndevices = 3\nmicro_batch = 1\nmini_batch = 2\n",
    "not-toml.toml": "name = \n",
    "tasks.py": "def prompts(rng, count): return []\ndef reward(prompt, response): return 0.0\n",
    "broken.py": "import no_such_module\n",
    "model/config.json": json.dumps(
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}
    ),
    "odd/config.json": json.dumps(
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}
    ),
    "odd/char_tokenizer.json": json.dumps({"kind": "char", "symbols": "abc"}),
    "hidden/sitecustomize.py": """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "torch", "deepspeed", "vllm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
""",
}
REFUSED = {
    "an unknown key": (["job", "submit", "typo.toml"], 2, "spec.unknown-key"),
    "a file that is no TOML": (["job", "submit", "not-toml.toml"], 2, "spec.syntax"),
    "a file that is not there": (["job", "submit", "gone.toml"], 2, "spec.missing"),
    "a model folder that is not there": (["job", "submit", "no-model.toml"], 2, "spec.invalid"),
    "a reward that does not import": (["job", "submit", "no-reward.toml"], 2, "spec.invalid"),
    "another vocabulary": (["job", "submit", "odd.toml"], 2, "model.vocabulary"),
    "a batch that groups do not fill": (["job", "submit", "ragged.toml"], 2, "spec.invalid"),
    "a batch that ranks do not share": (["job", "submit", "few.toml"], 2, "spec.invalid"),
    "a bound below 1": (["job", "submit", "low-slo.toml"], 2, "spec.invalid"),
    "a fully asynchronous job": (["job", "submit", "async.toml"], 2, "spec.invalid"),
    "own engines one step off-policy": (["job", "submit", "own.toml"], 2, "spec.invalid"),
    "a bound below 1 as a flag": (["job", "submit", "first.toml", "--slo", "0.5"], 2, "usage"),
    "a job that can never fit": (["job", "submit", "wide.toml"], 3, "place.infeasible"),
    "an unknown job": (["job", "show", "j-nobody"], 4, "not-found"),
    "an unknown job to cancel": (["job", "cancel", "nobody"], 4, "not-found"),
    "an unknown group": (["group", "up", "g-nobody"], 4, "not-found"),
    "an unknown pool": (["pool", "show", "nowhere"], 4, "not-found"),
    "an unknown profile": (["profile", "show", "p-nobody"], 4, "not-found"),
    "a store that is not there": (
        ["job", "ls", "--store", "sqlite:///gone/rmux.db"],
        10,
        "store.missing",
    ),
    "an unknown verb": (["job", "sbmit", "first.toml"], 2, "usage"),
}
TOLD = {
    "an unknown key": ["typo.toml:3:", "iteratons", "did you mean iterations?"],
    "a file that is no TOML": ["not-toml.toml:1:"],
    "a model folder that is not there": ["no-model.toml:3:", "/gone"],
    "a reward that does not import": ["broken.py:reward", "No module named 'no_such_module'"],
    "another vocabulary": ["has 3 tokens", "a vocabulary of 8"],
    "a batch that groups do not fill": ["train.mini_batch is 16", "the 24 samples", "6 ×", "4"],
    "a batch that ranks do not share": ["micro_batch 1 × train.devices 3", "mini_batch 2"],
    "a bound below 1": ["low-slo.toml:3:", "0.5", "1"],
    "a fully asynchronous job": ["async.toml:3:", "max_staleness is 2", "no bubble to fill"],
    "own engines one step off-policy": ["own.toml:3:", "one process"],
    "a job that can never fit": ["needs 3 devices", "cpu-rollout has 1 of 1"],
    "an unknown job": ["j-nobody"],
    "a store that is not there": ["gone/rmux.db"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files, and a store that knows the hardware of examples/cpu."""
    path = tmp_path_factory.mktemp("bad-input")
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    for argv in (["store", "init"], ["pool", "add", "-f", str(CLUSTER)]):
        assert rmux_in(path, *argv).returncode == 0
    return path


def rmux_in(folder, *argv, **environ):
    clean = {
        name: text for name, text in os.environ.items() if not name.startswith(("RMUX", "XDG"))
    }
    env = {**clean, "HOME": str(folder), "RMUX_STORE": f"sqlite:///{folder}/state/rmux.db"}
    return subprocess.run(
        [sys.executable, "-m", "rmux", *argv],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**env, **environ},
        timeout=60,
        check=False,
    )


def refused(folder, *argv, **environ):
    """(exit code, error document) of a command that prints nothing on stdout."""
    done = rmux_in(folder, *argv, "--json", **environ)
    assert done.stdout == ""
    error = json.loads(done.stderr.splitlines()[-1])
    assert (error["schema"], error["exit_code"]) == ("rmux.error/v1", done.returncode)
    assert error["message"]
    return done.returncode, error


def jobs(folder):
    """State by name of the jobs that have not ended."""
    done = rmux_in(folder, "job", "ls", "--json")
    items = json.loads(done.stdout)["items"]
    return {one["name"]: one["state"] for one in items if one["state"] != "cancelled"}


def submit(folder, spec):
    done = rmux_in(folder, "job", "submit", spec, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cancel(folder, *names):
    assert rmux_in(folder, "job", "cancel", *names).returncode == 0


@pytest.fixture
def emptied(folder):
    """The folder; jobs that a test leaves are cancelled after it."""
    yield folder
    left = jobs(folder)
    if left:
        cancel(folder, *left)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(folder, what):
    argv, code, slug = REFUSED[what]
    found, error = refused(folder, *argv)
    assert (found, error["code"]) == (code, slug)
    for text in TOLD.get(what, []):
        assert text in error["message"]


def test_a_refused_job_is_not_stored(folder):
    for argv, code, _ in REFUSED.values():
        if argv[:2] == ["job", "submit"] and code == 3:
            refused(folder, *argv)
    assert jobs(folder) == {}


def test_a_job_without_room_waits_with_its_reason_and_gets_the_place_of_one_that_goes(emptied):
    assert submit(emptied, "first.toml")["state"] == "placed"
    second = submit(emptied, "second.toml")
    assert (second["created"], second["state"]) == (True, "pending")
    assert second["reason"]["code"] == "slo"
    assert "slows first 1.66x where 1.00x is allowed" in second["reason"]["message"]
    cancel(emptied, "first")
    assert jobs(emptied) == {"second": "placed"}


def test_without_engines_a_real_job_is_refused_and_a_group_with_one_does_not_come_up(emptied):
    hidden = {"PYTHONPATH": str(emptied / "hidden")}
    code, error = refused(emptied, "job", "submit", "real.toml", **hidden)
    assert (code, error["code"]) == (9, "backend.missing")
    assert "rmux[cpu]" in error["hint"]
    assert error["details"]["missing"] == ["ray", "torch", "deepspeed", "vllm"]
    assert jobs(emptied) == {}
    group = submit(emptied, "real.toml")["group"]
    for how in ([], ["--detach"]):
        code, error = refused(emptied, "group", "up", group, *how, **hidden)
        assert (code, error["code"]) == (9, "backend.missing")
        assert "rmux[cpu]" in error["hint"]
    told = rmux_in(emptied, "group", "watch", group, "--since-seq", "0", "--until", "idle").stdout
    assert "process" not in told, "nothing was started"


def test_a_redis_that_does_not_answer_is_exit_11(emptied):
    group = submit(emptied, "first.toml")["group"]
    code, error = refused(emptied, "group", "up", group, "--redis", "redis://me:word@127.0.0.1:1/0")
    assert (code, error["code"], error["retryable"]) == (11, "channel.unreachable", True)
    assert "me:***@127.0.0.1:1" in error["message"]
    assert jobs(emptied) == {"first": "placed"}
