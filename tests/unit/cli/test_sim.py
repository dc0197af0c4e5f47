"""`rmux sim`: replays of real traces, and what is refused, on the command line."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from rmux.place.sim.policies.catalogue import POLICIES

DATA = Path(__file__).parents[2] / "data" / "traces"
PHILLY = str(DATA / "philly_300jobs.csv")
FAST = ("--policy", "rollmux-static", "--no-opt")


def answer(run, *argv):
    code, out, err = run("sim", *argv, "--json")
    assert code == 0, err
    return json.loads(out)


def refusal(run, *argv, expected=2):
    code, out, err = run("sim", *argv)
    assert (code, out) == (expected, ""), err
    assert "Traceback" not in err
    return err


def test_a_run_answers_with_every_figure_under_its_name(run):
    found = answer(run, "run", PHILLY, *FAST, "--seed", "3", "--slo", "1:2")
    assert (found["schema"], found["jobs"], found["seed"]) == ("rmux.sim/v1", 300, 3)
    assert found["slo_attainment"] == found["slo_attainment_absolute"] == 1
    assert found["slo_attainment_relative"] == 1
    assert found["cost_usd_per_h"] == pytest.approx(285, rel=0.05)
    assert found["cost_usd"] == pytest.approx(found["cost_usd_per_h"] * found["span_s"] / 3600)
    assert sum(found["cost_by_tenant"].values()) == pytest.approx(found["cost_usd"])
    assert found["finish_time_fairness"]["max"] == pytest.approx(1)
    assert sum(found["placements"].values()) == found["nodes_per_job"]["1+1"] == 300
    assert set(found["jct_s"]) == set(found["wait_s"]) == {"mean", "p50", "p95"}
    assert (found["opt_usd_per_h"], found["lp_bound_usd_per_h"]) == (None, None)
    assert (found["settings"]["workload"], found["settings"]["durations"]) == ("mixed", "hold")
    assert 0 < found["elapsed_s"] < 5


def test_the_same_seed_gives_the_same_answer(run):
    left, right = (answer(run, "run", PHILLY, *FAST, "--window", "0:80") for _ in range(2))
    for found in (left, right):
        del found["elapsed_s"], found["generated_at"]
    assert left == right


@pytest.mark.parametrize("workload", ["balanced", "rollout-heavy", "train-heavy"])
def test_every_workload_can_be_replayed_on_every_window(run, workload):
    argv = ("run", PHILLY, *FAST, "--workload", workload, "--window", "100h:200h")
    found = answer(run, *argv)
    assert found["settings"]["workload"] == workload
    assert 20 < found["jobs"] < 150


def test_sources_are_tenants_and_each_pays_its_part(run):
    found = answer(run, "run", str(DATA / "philly_two_clusters.csv"), *FAST)
    assert set(found["cost_by_tenant"]) == {"muri_trace1", "muri_trace4"}
    assert sum(found["cost_by_tenant"].values()) == pytest.approx(found["cost_usd"])


def test_fixed_pools_make_jobs_wait_and_cost_no_more_than_they_hold(run):
    argv = ("run", PHILLY, *FAST, "--window", "0:100")
    free, fixed = answer(run, *argv), answer(run, *argv, "--pools", "4:3")
    assert free["wait_s"]["mean"] == 0
    assert fixed["wait_s"]["mean"] > 0
    assert (fixed["peak_gpus"]["rollout"], fixed["peak_gpus"]["train"]) == (32, 24)
    assert fixed["cost_usd_per_h"] <= 4 * 14.80 + 3 * 42.24
    assert fixed["finish_time_fairness"]["max"] > 1


def test_prices_durations_gpus_and_memory_change_what_they_say(run):
    argv = ("run", PHILLY, *FAST, "--window", "0:60")
    plain = answer(run, *argv)
    dearer = answer(run, *argv, "--prices", "3.7:10.56")
    assert dearer["cost_usd"] == pytest.approx(2 * plain["cost_usd"])
    work = answer(run, *argv, "--durations", "work")
    assert work["jct_s"]["mean"] > plain["jct_s"]["mean"]
    tight = answer(run, *argv, "--host-memory", "600GB")
    assert tight["cost_usd"] > plain["cost_usd"]
    assert tight["placements"].get("direct packing", 0) < plain["placements"]["direct packing"]
    wide = answer(run, "run", str(DATA / "philly_two_clusters.csv"), *FAST, "--gpus", "trace")
    assert set(wide["nodes_per_job"]) <= {"1+1", "2+2", "4+4"}


def test_people_read_a_few_lines(run):
    code, out, _ = run("sim", "run", PHILLY, *FAST, "--window", "0:50")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("rollmux-static: ")
    assert lines[0].split(", ")[1].startswith("50 jobs over ")
    assert any(line.startswith("  SLO       100.0%") for line in lines)


def test_the_time_line_is_written_whole_and_adds_up(run, tmp_path):
    path = tmp_path / "line.jsonl"
    found = answer(run, "run", PHILLY, *FAST, "--window", "0:50", "--out", str(path))
    points = [json.loads(line) for line in path.read_text().splitlines()]
    assert {point["schema"] for point in points} == {"rmux.sim_point/v1"}
    usd = sum(
        left["usd_per_h"] * (right["at_s"] - left["at_s"]) / 3600
        for left, right in pairwise(points)
    )
    assert usd == pytest.approx(found["cost_usd"])
    assert [*tmp_path.glob(".*.jsonl*")] == []


def test_a_time_line_into_no_folder_is_told_and_leaves_nothing(run, tmp_path):
    argv = ("run", PHILLY, *FAST, "--window", "0:5", "--out", str(tmp_path / "none" / "x"))
    assert "cannot be written" in refusal(run, *argv)


def test_policies_are_compared_over_seeds_with_their_range(run):
    names = "rollmux-static,rollmux-paper"
    argv = ("compare", PHILLY, "--policies", names, "--window", "0:80", "--no-opt", "--seeds", "3")
    found = answer(run, *argv)
    assert (found["schema"], found["seeds"], found["jobs"]) == (
        "rmux.sim_compare/v1",
        [0, 1, 2],
        80,
    )
    assert [item["policy"] for item in found["items"]] == names.split(",")
    for item in found["items"]:
        cost = item["cost_usd_per_h"]
        assert cost["min"] < cost["mean"] < cost["max"]
        assert item["slo_attainment"] == {"mean": 1, "min": 1, "max": 1}
        assert item["ratio_opt"] is None
    one = answer(run, "run", PHILLY, *FAST, "--window", "0:80", "--seed", "2")
    costs = found["items"][0]["cost_usd_per_h"]
    assert costs["min"] <= one["cost_usd_per_h"] <= costs["max"]


def test_processes_change_nothing_but_the_time(run):
    argv = ("compare", PHILLY, "--policies", "rollmux-paper", "--window", "0:40", "--no-opt")
    alone, several = (answer(run, *argv, "--seeds", "2", "--jobs", n) for n in ("1", "2"))
    for found in (alone, several):
        del found["generated_at"], found["items"][0]["elapsed_s"]
    assert alone == several


def test_a_comparison_is_a_table_for_people(run):
    argv = ("--window", "0:40", "--no-opt", "--seeds", "2", "--policies", "rollmux-static")
    code, out, _ = run("sim", "compare", PHILLY, *argv)
    assert code == 0
    assert out.splitlines()[0].split() == [
        "POLICY",
        "USD/H",
        "RANGE",
        "/OPT",
        "/LP",
        "SLO",
        "MOVES",
    ]
    assert out.splitlines()[1].startswith("rollmux-static")


def test_every_policy_is_listed(run):
    found = answer(run, "policies")
    assert [item["name"] for item in found["items"]] == list(POLICIES)
    assert {"rollmux", "rollmux-paper", "rollmux-static"} <= set(POLICIES)
    assert all(item["summary"] for item in found["items"])


def test_a_trace_may_come_through_stdin(spawn):
    done = spawn("sim", "run", "-", *FAST, "--json", input=Path(PHILLY).read_text())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == 300


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--policy", "rolmux"), "no policy 'rolmux' (did you mean rollmux?)"),
        (("--workload", "odd"), "--workload: 'odd' is not one of mixed"),
        (("--slo", "0.5:2"), "a slowdown is at least 1"),
        (("--slo", "2:1"), "LO is at most HI"),
        (("--slo", "a"), "--slo: 'a' cannot be read"),
        (("--slo", "nan:nan"), "a slowdown is at least 1"),
        (("--pools", "0:1"), "--pools: '0:1' cannot be read"),
        (("--prices", "-1:1"), "--prices: '-1:1' cannot be read"),
        (("--gpus", "4"), "--gpus: '4' is not one of 8, trace"),
        (("--durations", "x"), "--durations: 'x' is not one of hold, work"),
        (("--margin", "-1"), "margin is -1"),
        (("--window", "5"), "--window: '5' is not START:END"),
        (("--source", "x"), "--source: the file has no column source"),
        (("--columns", "x"), "--columns: 'x' does not name a column"),
        (("--host-memory", "many"), "'many' is not a size"),
        (("--seed", "-1"), "seed -1 is not between"),
    ],
)
def test_an_option_that_cannot_be_used_is_told(run, argv, told):
    assert told in refusal(run, "run", PHILLY, *argv)


def test_a_job_larger_than_the_pools_is_infeasible(run, tmp_path):
    path = tmp_path / "big.csv"
    path.write_text("job,arrival_s,duration_s,num_gpu\nbig,0,10,64\n")
    argv = ("run", str(path), "--gpus", "trace", "--pools", "4:4")
    assert "job big needs 8 rollout nodes; the pool has 4" in refusal(run, *argv, expected=3)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"job,arrival_s,duration_s\na,-1,5\n", ":2: arrival_s: '-1' is less than 0"),
        (b"job,arrival_s,duration_s\na,0,5\na,1,5\n", ":3: job: 'a' is already the job of line 2"),
        (b"job,arrival_s,duration_s\na,5,5\nb,1,5\n", ":3: arrival_s: 1 s is before the 5 s"),
        (b"", ": empty"),
        ("a,b\n".encode("utf-16"), ": not UTF-8 text"),
    ],
)
def test_a_bad_trace_ends_with_its_row_and_no_answer(run, tmp_path, content, told):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    out = tmp_path / "line.jsonl"
    for argv in (("run", str(path), "--out", str(out)), ("compare", str(path))):
        assert f"bad.csv{told}" in refusal(run, *argv)
    assert not out.exists()


def test_other_headers_are_mapped_and_unsorted_rows_sorted_on_demand(run, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("n,t0,len\nb,3600000,60\na,0,60\n")
    argv = ("run", str(path), *FAST, "--columns", "job=n,arrival_ms=t0,duration_min=len")
    assert "--sort" in refusal(run, *argv)
    assert answer(run, *argv, "--sort")["span_s"] == 7200


def test_phases_are_simulated_on_demand_and_told_as_a_live_group_tells_them(run, tmp_path):
    path = tmp_path / "events.jsonl"
    argv = ("run", PHILLY, *FAST, "--window", "0:12", "--mode", "phases")
    found = answer(run, *argv, "--events", str(path))
    phases = found["phases"]
    assert (phases["dispatch"], phases["within_slo"], phases["failures"]) == ("strict", 1, 0)
    assert found["slo_attainment"] == 1
    assert run("trace", "check", str(path))[0] == 0
    jittered = answer(run, *argv, "--jitter", "0.3", "--dispatch", "fifo", "--mtbf", "20h")
    assert jittered["phases"]["within_slo"] < 1
    assert jittered["slo_attainment_absolute"] < 1
    assert answer(run, *argv[:-2])["phases"] is None


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--jitter", "0.1"), "--jitter needs --mode phases"),
        (("--dispatch", "fifo"), "--dispatch needs --mode phases"),
        (("--mode", "phases", "--jitter", "-1"), "a jitter of -1"),
        (("--mode", "phases", "--dispatch", "lifo"), "--dispatch: 'lifo' is not one of"),
        (("--mode", "phases", "--drift", "up"), "--drift: 'up' is not one of"),
        (("--mode", "phases", "--mtbf", "9"), "'9' is not a duration"),
        (("--mode", "both"), "--mode: 'both' is not one of placement, phases"),
    ],
)
def test_options_of_phases_that_cannot_be_used_are_told(run, argv, told):
    assert told in refusal(run, "run", PHILLY, "--policy", "rollmux-static", *argv)
