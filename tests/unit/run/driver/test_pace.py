import signal
import threading
from dataclasses import dataclass

import pytest

from rmux.run.driver import shim
from rmux.run.driver.recipes import pace
from rmux.run.driver.session import Cancelled


@dataclass
class Spec:
    iterations: int = 5
    max_staleness: int = 1


class Job:
    """Stand-ins for the three phases, which tell when they run and under which weights."""

    def __init__(self):
        self.calls, self.versions, self.finished = [], [], 0
        self.changed = threading.Condition()

    def note(self, *call):
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()

    def await_call(self, *call):
        with self.changed:
            assert self.changed.wait_for(lambda: call in self.calls, 5.0), f"{call} never came"

    def rollout(self, iteration):
        version = self.finished
        self.note("rollout", iteration)
        return version

    def train(self, iteration, version):
        self.note("train", iteration)
        self.versions.append((iteration, self.finished - version))

    def sync(self, iteration):
        self.note("sync", iteration)
        self.finished += 1

    def run(self, spec=None, *, first=0, **phases):
        mine = {"rollout": self.rollout, "train": self.train, "sync": self.sync}
        pace.run(spec or Spec(), first=first, **{**mine, **phases})


@pytest.fixture(autouse=True)
def active(monkeypatch):
    """As in a driver."""
    monkeypatch.setattr(shim, "is_active", lambda: True)


def test_on_policy_the_phases_take_turns_in_one_thread():
    job, threads = Job(), set()

    def rollout(iteration):
        threads.add(threading.current_thread())
        return job.rollout(iteration)

    job.run(Spec(iterations=4, max_staleness=0), first=2, rollout=rollout)
    assert job.calls == [(phase, n) for n in (2, 3) for phase in ("rollout", "train", "sync")]
    assert threads == {threading.main_thread()}


def test_one_step_off_policy_the_next_rollout_runs_while_its_train_and_sync_do():
    job = Job()

    def train(iteration, version):
        if iteration < 4:
            job.await_call("rollout", iteration + 1)
        job.train(iteration, version)

    job.run(train=train)
    assert job.versions == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1)]


def test_a_rollout_never_begins_before_the_sync_of_two_iterations_ago():
    job = Job()

    def sync(iteration):
        if iteration + 2 < 5:
            with job.changed:
                began = job.changed.wait_for(lambda: ("rollout", iteration + 2) in job.calls, 0.02)
            assert not began
        job.sync(iteration)

    job.run(sync=sync)
    assert [call for call in job.calls if call[0] != "rollout"] == [
        (phase, n) for n in range(5) for phase in ("train", "sync")
    ]
    assert [call for call in job.calls if call[0] == "rollout"] == [
        ("rollout", n) for n in range(5)
    ]


def test_a_job_that_goes_on_samples_its_first_iteration_anew():
    job = Job()
    job.run(first=3)
    assert [n for phase, n in job.calls if phase == "rollout"] == [3, 4]


class Interrupt(BaseException):
    pass


@pytest.fixture
def main_interrupt(monkeypatch):
    """As a driver has it: a signal that ends what the main thread waits for."""

    def handle(number, frame):
        raise Interrupt

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(shim, "interrupt", interrupt)
    yield interrupt
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("main_interrupt")
def test_a_rollout_that_fails_cuts_the_train_short_and_is_the_error_told():
    job = Job()

    def rollout(iteration):
        if iteration == 2:
            job.await_call("train", 1)
            raise ValueError("no prompts")
        return job.rollout(iteration)

    def train(iteration, version):
        job.train(iteration, version)
        if iteration == 1:
            assert not threading.Event().wait(10.0), "it was cut short"
            raise AssertionError("nobody cut it short")

    with pytest.raises(ValueError, match="no prompts"):
        job.run(rollout=rollout, train=train)
    assert ("sync", 1) not in job.calls


def test_without_a_driver_the_phases_take_turns(monkeypatch):
    monkeypatch.setattr(shim, "is_active", lambda: False)
    job = Job()
    job.run(Spec(iterations=2))
    assert job.calls == [(phase, n) for n in (0, 1) for phase in ("rollout", "train", "sync")]


@pytest.mark.usefixtures("main_interrupt")
def test_a_train_that_fails_is_told_and_no_further_rollout_begins():
    job, ended, threads = Job(), threading.Event(), set()

    def rollout(iteration):
        threads.add(threading.current_thread())
        found = job.rollout(iteration)
        if iteration == 2:
            assert ended.wait(5.0)
            raise RuntimeError("its engines were closed under it")
        return found

    def train(iteration, version):
        if iteration == 1:
            job.await_call("rollout", 2)
            raise ValueError("no gradient")
        job.train(iteration, version)

    with pytest.raises(ValueError, match="no gradient"):
        job.run(rollout=rollout, train=train)
    ended.set()
    # Only its own: those of other tests may still be in a rollout that nothing waits for.
    (thread,) = threads
    thread.join(5.0)
    assert not thread.is_alive()
    assert ("rollout", 3) not in job.calls


def test_a_cancelled_job_trains_on_what_it_sampled_and_ends():
    job = Job()

    def rollout(iteration):
        if iteration == 3:
            raise Cancelled
        return job.rollout(iteration)

    with pytest.raises(Cancelled):
        job.run(rollout=rollout)
    assert job.calls[-1] == ("sync", 2)
    assert job.finished == 3


@pytest.mark.usefixtures("main_interrupt")
def test_an_interrupted_job_ends_at_once_whatever_its_rollout_does():
    job, ended = Job(), threading.Event()

    def rollout(iteration):
        if iteration == 1:
            shim.interrupt()
            ended.wait(5.0)
            raise RuntimeError("its engines were closed under it")
        return job.rollout(iteration)

    def train(iteration, version):
        assert not threading.Event().wait(10.0), "it was cut short"
        raise AssertionError("nobody cut it short")

    with pytest.raises(Interrupt):
        job.run(rollout=rollout, train=train)
    ended.set()
