"""`rmux place period`: a what-if on jobs and nodes, without a store."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmux.cli import period_question
from rmux.errors import UserError

TRIANGLE = [
    {"name": "a", "rollout_s": 100, "train_s": 140, "nodes": [0, 1]},
    {"name": "b", "rollout_s": 100, "train_s": 50, "nodes": [1, 2]},
    {"name": "c", "rollout_s": 100, "train_s": 50, "nodes": [0, 2]},
]


@pytest.fixture
def ask(run, tmp_path):
    """Exit code, the JSON answer (None without one) and stderr."""

    def call(question):
        text = question if isinstance(question, str) else json.dumps(question)
        (tmp_path / "jobs.json").write_text(text)
        code, out, err = run("place", "period", "jobs.json", "--json")
        return code, json.loads(out) if out else None, err

    return call


def test_the_answer_has_the_period_its_terms_and_the_order(ask):
    code, found, _ = ask({"jobs": TRIANGLE})
    assert code == 0
    assert found["schema"] == "rmux.period/v1"
    assert (found["period_s"], found["cycle_s"], found["load_s"]) == (300, 240, 240)
    assert (found["closed_form"], found["saturated"], found["binding"]) == (False, True, "order")
    assert sorted(found["order"]) == ["a", "b", "c"]
    assert [one["slowdown"] for one in found["jobs"]] == [1.25, 2.0, 2.0]


def test_the_switch_is_added_to_each_phase(ask):
    jobs = [
        {"name": "A", "rollout_s": 100, "train_s": 100, "nodes": ["n0"]},
        {"name": "B", "rollout_s": 95, "train_s": 95, "nodes": ["n0"]},
    ]
    assert ask({"jobs": jobs})[1]["period_s"] == 200
    found = ask({"jobs": jobs, "switch_s": 5})[1]
    assert (found["period_s"], found["cycle_s"], found["load_s"]) == (210, 210, 205)
    assert (found["closed_form"], found["saturated"]) == (True, False)
    assert (found["binding"], found["subject"]) == ("cycle", "A")


def test_sync_lengthens_only_the_loop_of_its_own_job(ask):
    jobs = [
        {"name": "A", "rollout_s": 10, "train_s": 10, "sync_s": 20, "nodes": [0]},
        {"name": "B", "rollout_s": 10, "train_s": 10, "nodes": [0]},
    ]
    found = ask({"jobs": jobs})[1]
    assert (found["period_s"], found["load_s"]) == (40, 20)


def test_a_job_that_may_repeat_runs_twice_beside_a_long_one(ask):
    jobs = [
        {"name": "A", "rollout_s": 100, "train_s": 20, "nodes": [0]},
        {"name": "B", "rollout_s": 40, "train_s": 20, "nodes": [1], "slo": 1.5},
    ]
    once = ask({"jobs": jobs})[1]
    assert [one["slowdown"] for one in once["jobs"]] == [1.0, 2.0]
    assert [one["ok"] for one in once["jobs"]] == [None, False]
    jobs[1]["max_repeats"] = 2
    found = ask({"jobs": jobs})[1]
    assert (found["order"], found["period_s"]) == (["A", "B", "B"], 120)
    assert [one["slowdown"] for one in found["jobs"]] == [1.0, 1.0]
    assert [one["turns"] for one in found["jobs"]] == [1, 2]
    assert found["jobs"][1]["ok"] is True


def test_a_job_one_step_off_policy_overlaps_its_own_phases(ask):
    job = {"name": "A", "rollout_s": 100, "train_s": 60, "sync_s": 20, "nodes": [0]}
    assert ask({"jobs": [job]})[1]["period_s"] == 180
    assert ask({"jobs": [{**job, "max_staleness": 1}]})[1]["period_s"] == 100
    # Its sync and the train after it take turns.
    long = {**job, "train_s": 90, "max_staleness": 1}
    assert ask({"jobs": [long]})[1]["period_s"] == 110


def test_people_read_a_table(run, tmp_path):
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": TRIANGLE}))
    code, out, _ = run("place", "period", "jobs.json")
    assert code == 0
    assert out.splitlines()[:2] == [
        "period 5m00s, bound by order (best cyclic order found)",
        "cycle 4m00s, load 4m00s: saturated",
    ]
    assert out.splitlines()[-1].split() == ["c", "1", "5m00s", "2m30s", "2.00", "-", "-"]


def test_a_dash_is_stdin(run, monkeypatch):
    text = json.dumps({"jobs": TRIANGLE}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    code, out, _ = run("place", "period", "-", "-o", "name")
    assert (code, sorted(out.split())) == (0, ["a", "b", "c"])


def test_a_file_named_like_the_verb_is_written_with_its_folder(run, tmp_path):
    (tmp_path / "period").write_text("")
    assert "missing" in run("place", "period")[2]  # the verb, without its argument
    assert "name is missing" in run("place", "./period")[2]  # a spec


def but(**changes):
    return {"jobs": [{**TRIANGLE[0], **changes}, *TRIANGLE[1:]]}


def without(key):
    return {"jobs": [{k: v for k, v in TRIANGLE[0].items() if k != key}]}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (but(rollout_s=-1), "jobs[0].rollout_s is -1; it must be more than 0"),
        (but(train_s=0), "jobs[0].train_s is 0; it must be more than 0"),
        (but(rollout_s=float("nan")), "jobs[0].rollout_s must be finite"),
        (but(sync_s=float("inf")), "jobs[0].sync_s must be finite"),
        (but(sync_s=-0.5), "jobs[0].sync_s is -0.5; it must be at least 0"),
        (but(rollout_s=1e300), "jobs[0].rollout_s is 1e+300; it must be at most 1000000000"),
        (but(rollout_s="100"), "jobs[0].rollout_s must be a number"),
        (but(rollout_s=True), "jobs[0].rollout_s must be a number"),
        (but(nodes=[]), "jobs[0].nodes"),
        (but(nodes="01"), "jobs[0].nodes must be a list"),
        (but(nodes=[0, "0"]), "jobs[0].nodes has 0 twice"),
        (but(nodes=[None]), "jobs[0].nodes[0] must be the name or the number of a node"),
        (but(nodes=list(range(1025))), "jobs[0].nodes"),
        (but(name="b"), "jobs[1].name is b, as jobs[0]'s"),
        (but(name=""), "jobs[0].name is ''"),
        (but(name="x" * 500), "jobs[0].name has 500 characters"),
        (but(rolout_s=3), "jobs[0].rolout_s is not a key (did you mean rollout_s?)"),
        (but(max_repeats=0), "jobs[0].max_repeats is 0; it must be at least 1"),
        (but(max_repeats=1.5), "jobs[0].max_repeats"),
        (but(max_staleness=2), "jobs[0].max_staleness is 2; it must be at most 1"),
        (but(slo=0.9), "jobs[0].slo is 0.9; it must be at least 1"),
        (without("rollout_s"), "jobs[0].rollout_s is missing"),
        (without("nodes"), "jobs[0].nodes is missing"),
        ({"jobs": TRIANGLE, "switch_s": -1}, "switch_s is -1; it must be at least 0"),
        ({"jobs": TRIANGLE, "swich_s": 1}, "swich_s is not a key (did you mean switch_s?)"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [{**TRIANGLE[0], "name": f"j{i}"} for i in range(65)]}, "jobs"),
        ({}, "jobs is missing"),
        ([], 'jobs.json must hold an object with the key "jobs"'),
        ("", "jobs.json:1: expecting value; not JSON"),
        ('{"jobs": [\n}', "jobs.json:2:"),
        ('{"jobs": [], "jobs": []}', "key 'jobs' stands twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"switch_s": ' + "9" * 5000 + "}", "jobs.json:"),
        ('{"\\ud800": 1}', "not UTF-8"),
        (" " * (4 * 2**20 + 1), "larger than 4 MiB"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_bad_question_is_refused_with_the_key(ask, question, words):
    code, found, err = ask(question)
    assert (code, found) == (2, None)
    assert words in err
    assert "Traceback" not in err
    assert json.loads(err.splitlines()[-1])["schema"] == "rmux.error/v1"


def test_a_file_that_cannot_be_read_is_named(run, tmp_path):
    (tmp_path / "latin.json").write_bytes(b'{"jobs": "\xe9"}')
    for name, words in (
        ("none.json", "cannot read none.json: No such file"),
        (".", "cannot read .: Is a directory"),
        ("latin.json", "latin.json is not UTF-8 text"),
    ):
        code, _, err = run("place", "period", name)
        assert code == 2
        assert words in err


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
jobs = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from("abcd") | values,
        "rollout_s": st.integers(1, 99) | values,
        "train_s": st.floats(0.1, 99) | values,
        "sync_s": st.just(0) | values,
        "nodes": st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True) | values,
        "max_staleness": st.integers(0, 1) | values,
        "max_repeats": st.integers(1, 3) | values,
        "slo": st.floats(1, 3) | values,
    },
)
questions = st.fixed_dictionaries(
    {"jobs": st.lists(jobs, max_size=4) | values}, optional={"switch_s": values}
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=(questions | values).map(json.dumps) | st.text(max_size=40))
def test_whatever_is_asked_the_answer_is_a_period_or_a_plain_error(ask, text):
    code, found, err = ask(text.encode("utf-8", "replace").decode())
    assert code in (0, 2)
    assert "Traceback" not in err
    if code == 0:
        assert found["period_s"] >= max(found["cycle_s"], 0.1)
    else:
        assert json.loads(err.splitlines()[-1])["code"].startswith("spec.")


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("asked") / "jobs.json"
    path.write_bytes(data)
    with pytest.raises(UserError):
        period_question.read(str(path))
