"""Whole drivers of jobs that are one step off-policy."""

import os
import signal
import threading

import pytest

from rmux.events import EventType
from rmux.job import Phase
from rmux.run.driver import checkpoint
from rmux.run.driver.link import Link
from rmux.run.trace_check import check

LAST = 4
PACED = """
import os, threading, types
import rmux
from rmux.run.driver.engines import Sampling
from rmux.run.driver.recipes import pace

fleet, trainer = rmux.fleet(), rmux.trainer()

first, last = int(os.environ["RMUX_START_ITERATION"]), int(os.environ["RMUX_ITERATIONS"])
begun = [threading.Event() for _ in range(last + 1)]
begun[last].set()
synced = [threading.Event() for _ in range(last)]

@rmux.phase("rollout")
def rollout(n):
    begun[n].set()
    {rollout}
    version = fleet.generate([(1,)], sampling=Sampling())[0].weight_version
    return {{"sampled": n, "under": version}}

@rmux.phase("train")
def train(n):
    {train}

@rmux.phase("sync")
def sync(n):
    report = trainer.publish(fleet)
    synced[n].set()
    return report

pace.run(
    types.SimpleNamespace(max_staleness=1, iterations=last),
    first=first,
    rollout=rollout,
    train=lambda n, _: ({between}, train(n)),
    sync=sync,
)
"""
BESIDE = "assert begun[n + 1].wait(5)"
"""A train that is not over before the next rollout has begun."""


@pytest.fixture
def paced(drive, make_config, script):
    def run(*, rollout="pass", train=BESIDE, between="None", **spec):
        path = script(PACED.format(rollout=rollout, train=train, between=between))
        spec = {"iterations": LAST, "max_staleness": 1, "recipe": None, "script": path, **spec}
        return drive(make_config(**spec))

    return run


def spans(gate, phase):
    starts = gate.of_type(EventType.PHASE_START, phase)
    ends = {e.iteration: e.at_s for e in gate.of_type(EventType.PHASE_END, phase)}
    return {e.iteration: (e.at_s, ends.get(e.iteration)) for e in starts}


def test_the_next_rollout_runs_beside_train_and_sync_and_never_two_ahead(paced, gate):
    assert paced() == 0
    rollouts, trains, syncs = (spans(gate, p) for p in (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC))
    assert [*rollouts] == [*trains] == [*syncs] == [*range(LAST)]
    for n in range(LAST - 1):
        assert rollouts[n + 1][0] < trains[n][1]
    for n in range(LAST - 2):
        assert rollouts[n + 2][0] > syncs[n][1]
    ends = gate.of_type(EventType.ITERATION_END)
    assert [(e.iteration, e.data["sampled"], e.data["weight_version"]) for e in ends] == [
        (n, n, n + 1) for n in range(LAST)
    ]
    # The gate of these tests tells of no grants.
    assert {found.rule for found in check(gate.events.values())} == {"no-grant"}


def test_an_iteration_counts_from_the_end_of_the_one_before(paced, gate):
    paced()
    ends = gate.of_type(EventType.ITERATION_END)
    total_s = ends[-1].at_s - ends[0].at_s
    assert sum(e.data["iteration_s"] for e in ends[1:]) == pytest.approx(total_s, abs=0.02)


def under(gate):
    return [e.data["under"] for e in gate.of_type(EventType.ITERATION_END)]


def test_samples_are_one_version_behind_the_trainer(paced, gate):
    paced()
    assert under(gate) == [0, 0, 1, 2]


def test_a_sync_in_mid_rollout_leaves_the_rollouts_version_alone(paced, gate):
    assert paced(rollout="assert n == 0 or synced[n - 1].wait(5)") == 0
    assert under(gate) == [0, 0, 1, 2]


def test_an_emulated_job_of_its_own_recipe_runs_one_step_off_policy(drive, gate, make_config):
    assert drive(make_config(iterations=LAST, max_staleness=1)) == 0
    rewards = [e.data["reward"] for e in gate.of_type(EventType.ITERATION_END)]
    versions = [round(1 / (1 - reward)) - 2 for reward in rewards]
    assert all(n - version in (0, 1) for n, version in enumerate(versions))
    starts = gate.of_type(EventType.PHASE_START, Phase.ROLLOUT)
    assert [e.data["max_staleness"] for e in starts] == [1] * LAST


def test_a_rollout_that_fails_ends_the_train_at_once_and_is_told(paced, gate):
    code = paced(
        rollout="n == 2 and 1 / 0",
        train=BESIDE + "\n    if n == 1: threading.Event().wait(20); raise SystemExit('not cut')",
    )
    assert code == 1
    assert gate.states[-1] == "failed"
    assert "ZeroDivisionError" in gate.report.status.error
    assert gate.report.status.iteration == 1
    assert {use.state for use in gate.report.uses} == {"parked"}


def test_a_train_that_fails_is_told_whatever_the_rollout_beside_it_says(paced, gate):
    code = paced(
        rollout="n == 2 and threading.Event().wait(20)",
        train=BESIDE + "\n    if n == 1: 1 / 0",
    )
    assert code == 1
    assert "ZeroDivisionError" in gate.report.status.error
    assert gate.report.status.wants == ()


def test_a_cancelled_job_trains_on_what_it_sampled_and_samples_no_more(paced, gate):
    def cancel():
        while not gate.of_type(EventType.PHASE_START, Phase.ROLLOUT):
            threading.Event().wait(0.002)
        gate.desired = "cancel"

    threading.Thread(target=cancel, daemon=True).start()
    # The second rollout can only be over once the order has come.
    assert paced(iterations=50, rollout="threading.Event().wait(0.3)", train="pass") == 0
    assert gate.states[-1] == "cancelled"
    rolled = {e.iteration for e in gate.of_type(EventType.PHASE_END, Phase.ROLLOUT)}
    assert gate.report.status.iteration == len(rolled) < 50
    assert gate.report.status.wants == ()


def test_a_paused_job_trains_on_what_it_sampled_then_wants_nothing_and_goes_on(paced, gate):
    def pause_then_resume():
        while not gate.of_type(EventType.PHASE_START, Phase.ROLLOUT):
            threading.Event().wait(0.002)
        gate.desired = "pause"
        while gate.states[-1] != "paused":
            threading.Event().wait(0.002)
        seen.append((gate.report.status.wants, gate.report.status.iteration))
        seen.append(len(gate.of_type(EventType.PHASE_END, Phase.ROLLOUT)))
        gate.desired = "run"

    seen = []
    threading.Thread(target=pause_then_resume, daemon=True).start()
    assert paced(rollout="threading.Event().wait(0.1)", train="pass") == 0
    assert gate.states[-1] == "succeeded"
    assert gate.report.status.iteration == LAST
    (wants, finished), rolled = seen
    assert wants == ()
    assert finished == rolled < LAST


def test_sigterm_ends_train_and_rollout_at_once_and_the_rollout_is_sampled_anew(
    paced, gate, make_config, tmp_path
):
    def terminate():
        while not (
            gate.of_type(EventType.ITERATION_END)
            and len(gate.of_type(EventType.PHASE_START, Phase.ROLLOUT)) == 3
        ):
            threading.Event().wait(0.002)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    block = "threading.Event().wait(20)"
    assert paced(rollout=f"n == 2 and {block}", train=f"{BESIDE}; n == 1 and {block}") == 143
    assert gate.states[-1] == "running"
    finished = checkpoint.latest(make_config().run_dir).iteration
    assert finished == 1
    assert paced(attempt=2) == 0
    again = [e for e in gate.of_type(EventType.PHASE_START) if e.data["attempt"] == 2]
    assert [e.iteration for e in again if e.phase is Phase.ROLLOUT] == [1, 2, 3]


def test_two_threads_are_refused_on_policy(drive, gate, make_config, script):
    path = script("""
import threading
import rmux
errors = []

@rmux.phase("rollout")
def rollout():
    pass

def beside():
    try:
        rollout()
    except Exception as error:
        errors.append(error)

@rmux.phase("train")
def train():
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()

rollout()
train()
raise errors[0]
""")
    assert drive(make_config(recipe=None, script=path)) == 1
    assert "while phase train runs in another thread" in gate.report.status.error
    assert "hint: only with max_staleness = 1" in gate.report.status.error


def test_the_next_rollout_is_wanted_only_after_its_train_however_long_rewards_take(
    paced, gate, monkeypatch
):
    """Its turn comes after the train's: wanted alone it would cost the job that turn."""
    wanted = []
    want = Link.want

    def note(self, phase, **about):
        if (str(phase), about["iteration"]) not in wanted:
            wanted.append((str(phase), about["iteration"]))
        want(self, phase, **about)

    monkeypatch.setattr(Link, "want", note)
    assert paced(between="threading.Event().wait(0.05)") == 0
    for n in range(1, LAST):
        assert wanted.index(("train", n - 1)) < wanted.index(("rollout", n))
