import statistics
import threading

import pytest

from rmux import phase, runtime_hook
from rmux.errors import UserError
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.channel import MemoryChannel
from rmux.run.driver import shim
from rmux.run.driver.link import Link
from rmux.run.driver.session import Cancelled, Session
from rmux.run.workers.emulated import EmulatedEngines


class Recording(EmulatedEngines):
    def __init__(self, config, calls):
        super().__init__(config)
        self.calls = calls

    def wake(self, kind, devices=None):
        self.calls.append(f"engines wake {kind}")
        return super().wake(kind, devices)

    def park(self, kind, devices=None):
        self.calls.append(f"engines park {kind}")
        return super().park(kind, devices)


class Job:
    """A session served by a gate that grants everything, and what was called in it."""

    def __init__(self, hub, config, gate):
        self.calls, self.saved = [], []
        self.link = Link(config, channel=MemoryChannel(hub))
        self.link.start()
        self.engines = Recording(config, self.calls)
        self.gate = gate
        self.session = Session(config, link=self.link, engines=self.engines, save=self.save)
        shim.activate(self.session)

    def save(self, *, finished, weight_version):
        self.saved.append((finished, weight_version))
        return 42

    def user(self, name, result=None, **callbacks):
        @phase(name, **callbacks)
        def function():
            self.calls.append(name)
            return result

        return function

    def end(self):
        """Stop, and return the gate with every event in it."""
        self.link.end("succeeded", iteration=self.session.finished, error="", acks_within_s=1.0)
        self.gate.stop()
        return self.gate

    def close(self):
        shim.activate(None)
        self.engines.close()
        self.link.close()


@pytest.fixture
def job(hub, make_config, gate):
    job = Job(hub, make_config(), gate)
    gate.serve()
    yield job
    job.close()


def test_a_phase_wakes_runs_and_parks_around_the_users_function(job):
    job.user(
        "rollout", wake=lambda: job.calls.append("wake"), park=lambda: job.calls.append("park")
    )()
    assert job.calls == [
        "engines wake rollout",
        "wake",
        "rollout",
        "park",
        "engines park rollout",
    ]
    gate = job.end()
    held, use = gate.ended["r/0"]
    assert (held.phase, held.iteration, use.state) == ("rollout", 0, "parked")


def test_what_a_function_returns_reaches_its_caller_and_its_numbers_the_event(job):
    result = {"reward": 0.5, "note": "fine", "broken": float("nan"), "device": 3, "phase": 1}
    assert job.user("rollout", result)() is result
    [end] = job.end().of_type(EventType.PHASE_END)
    assert (end.data["reward"], end.data["device"], end.device) == (0.5, 3, "r/0")
    assert "note" not in end.data
    assert "broken" not in end.data


def test_a_phase_tells_what_it_waited_switched_ran_and_cost(job):
    job.user("rollout")()
    gate = job.end()
    [start] = gate.of_type(EventType.PHASE_START)
    [end] = gate.of_type(EventType.PHASE_END)
    assert {"epoch", "seq", "attempt", "wait_s", "switch_s", "overhead_s"} <= start.data.keys()
    assert {"attempt", "run_s", "park_s", "overhead_s"} <= end.data.keys()
    assert 0 < start.data["overhead_s"] < end.data["overhead_s"] < 0.5
    assert (start.data["epoch"], start.data["seq"]) == (1, gate.ended["r/0"][0].seq)
    assert start.data["devices"] == ["r/0"]


def test_sync_ends_the_iteration_after_its_checkpoint(job):
    for name in ("rollout", "train", "sync"):
        job.user(name, {"reward": 0.25} if name == "rollout" else {"version": 7})()
    assert job.session.finished == 1
    assert job.saved == [(1, 7)]
    gate = job.end()
    [saved], [end] = gate.of_type(EventType.CHECKPOINT), gate.of_type(EventType.ITERATION_END)
    assert (saved.data["bytes"], saved.source_n < end.source_n) == (42, True)
    assert (end.iteration, end.data["finished"]) == (0, 1)
    assert (end.data["reward"], end.data["weight_version"]) == (0.25, 7)
    assert end.data["iteration_s"] > 0


def test_without_sync_the_next_rollout_ends_the_iteration_and_so_does_the_scripts_end(job):
    rollout, train = job.user("rollout"), job.user("train")
    rollout()
    train()
    assert job.session.finished == 0
    rollout()
    assert job.session.finished == 1
    train()
    job.session.finish()
    assert job.saved == [(1, 1), (2, 2)]
    assert [end.iteration for end in job.end().of_type(EventType.ITERATION_END)] == [0, 1]


def test_an_unfinished_iteration_at_the_end_does_not_count(job):
    job.user("rollout")()
    job.session.finish()
    assert (job.session.finished, job.saved) == (0, [])


@pytest.mark.parametrize(
    ("before", "called", "due"),
    [
        ([], "train", "where rollout is due first"),
        ([], "sync", "where rollout is due first"),
        (["rollout"], "rollout", "where train is due after rollout"),
        (["rollout"], "sync", "where train is due after rollout"),
        (["rollout", "train"], "train", "where sync is due after train"),
        (["rollout", "train", "sync"], "sync", "where rollout is due after sync"),
        (["rollout"], "init", "where train is due after rollout"),
    ],
)
def test_a_phase_out_of_order_is_refused_with_the_one_that_is_due(job, before, called, due):
    for name in before:
        job.user(name)()
    with pytest.raises(UserError, match=due):
        job.user(called)()


def test_a_phase_inside_a_phase_is_refused(job):
    @phase("rollout")
    def rollout():
        job.user("train")()

    with pytest.raises(UserError, match="inside phase rollout"):
        rollout()


def test_an_exception_gives_the_devices_back_and_the_phase_may_be_tried_again(job):
    @phase("rollout")
    def failing():
        raise KeyError("reward")

    with pytest.raises(KeyError):
        failing()
    assert job.calls[-1] == "engines park rollout"
    job.user("rollout")()
    ends = job.end().of_type(EventType.PHASE_END)
    assert [end.data.get("error") for end in ends] == ["KeyError", None]


def test_init_runs_ungated_before_the_first_rollout(job):
    assert job.user("init", "built")() == "built"
    assert job.calls == ["init"]
    job.user("rollout")()


def test_a_cancelled_job_ends_at_the_boundary_not_before(job):
    job.user("rollout")()
    job.gate.desired = "cancel"
    job.gate.announce()
    assert job.link.await_desired(lambda order: order == "cancel", timeout_s=1.0)
    job.user("train")()
    job.user("sync")()
    with pytest.raises(Cancelled):
        job.user("rollout")()
    assert job.session.finished == 1
    assert job.calls.count("rollout") == 1


def test_a_paused_job_waits_at_the_boundary_without_wanting_anything(job):
    job.gate.desired = "pause"
    job.gate.announce()
    assert job.link.await_desired(lambda order: order == "pause", timeout_s=1.0)
    seen = threading.Event()

    def resume():
        while not (job.gate.states and job.gate.states[-1] == "paused"):
            threading.Event().wait(0.002)
        assert job.gate.report.status.wants == ()
        threading.Event().wait(0.1)
        seen.set()
        job.gate.desired = "run"

    watcher = threading.Thread(target=resume)
    watcher.start()
    job.user("rollout")()
    watcher.join()
    assert seen.is_set()
    [start] = job.end().of_type(EventType.PHASE_START)
    assert start.data["wait_s"] < 0.05
    assert job.gate.states[:3] == ["starting", "paused", "running"]


def test_progress_is_reported_twice_a_second_at_most_and_the_hook_always_called(job):
    heard = []

    @runtime_hook
    def hook(progress):
        heard.append(progress["tokens"])

    @phase("rollout")
    def rollout():
        for tokens in range(50):
            hook({"tokens": tokens})

    rollout()
    assert heard == list(range(50))
    [progress] = job.end().of_type(EventType.PROGRESS)
    assert (progress.phase, progress.data["tokens"]) == (Phase.ROLLOUT, 0)


def test_a_user_function_starts_within_two_milliseconds_of_its_permit(job):
    rollout, train = job.user("rollout"), job.user("train")
    for _ in range(30):
        rollout()
        train()
    starts = job.end().of_type(EventType.PHASE_START)
    assert statistics.median(start.data["overhead_s"] for start in starts) < 0.002
