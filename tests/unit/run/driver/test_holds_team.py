"""A rollout whose devices come one by one and go one by one, in a session with stand-ins."""

import threading
import time

import pytest

from rmux import phase
from rmux.cluster import PoolKind
from rmux.errors import BackendError
from rmux.events import EventType
from rmux.job import Engine, JobSpec, Phase, RolloutSpec
from rmux.run.channel import MemoryChannel
from rmux.run.driver import shim
from rmux.run.driver.engines import FinishedLength, InFlight, MoveReport
from rmux.run.driver.link import Link
from rmux.run.driver.session import Session
from rmux.run.messages import Permits, streams
from rmux.run.nexts import Next

BOTH = ("r/0", "r/1")


class Fleet:
    """Requests that gain a token every 10 ms and end when told to."""

    def __init__(self):
        self.homes, self.done, self.left, self.joined = {}, [], [], []
        self.begun_s = time.monotonic()

    def in_flight(self):
        tokens = int(100 * (time.monotonic() - self.begun_s))
        return tuple(
            InFlight(key=key, device=device, prompt_tokens=4, tokens=tokens)
            for key, device in self.homes.items()
        )

    def finished_lengths(self):
        return tuple(self.done)

    def leave(self, devices, *, homes=None):
        moved = [key for key, device in self.homes.items() if device in devices]
        assert {homes[key] for key in moved}.isdisjoint(devices)
        self.homes |= {key: homes[key] for key in moved}
        self.left += devices
        return MoveReport(requests=len(moved), tokens_carried=7, exact=len(moved), seconds=0.01)

    def join(self, devices):
        self.joined += devices
        return 0


class Engines:
    def __init__(self):
        self.calls, self.own_fleet, self.error = [], Fleet(), None

    def wake(self, kind, devices=None):
        self.calls.append(("wake", kind, None if devices is None else [*map(str, devices)]))
        if devices is not None and self.error and len(self.calls) > 1:
            raise self.error
        return 0.0

    def park(self, kind, devices=None):
        self.calls.append(("park", kind, None if devices is None else [*map(str, devices)]))
        return 0.0

    def pids(self, device):
        return (device.index,)

    def fleet(self):
        return self.own_fleet


def wait_for(condition, timeout_s=5.0):
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it does not come"
        threading.Event().wait(0.005)


class Job:
    def __init__(self, hub, config, gate):
        self.link = Link(config, channel=MemoryChannel(hub))
        self.link.start()
        self.engines, self.gate, self.interrupted = Engines(), gate, threading.Event()
        self.session = Session(
            config,
            link=self.link,
            engines=self.engines,
            save=lambda **_: None,
            interrupt=self.interrupted.set,
        )
        shim.activate(self.session)
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.open = True
        self.listener.start()

    def _listen(self):
        while self.open:
            report = self.gate.hear(timeout_s=0.01)
            for use in report.uses if report else ():
                held = self.gate.open.get(use.device)
                if held and use.state == "parked" and (use.epoch, use.seq) == held.order:
                    self.gate.ended[use.device] = (held, use)
                    del self.gate.open[use.device]
            self.gate.announce()

    def told(self, kind):
        wait_for(lambda: self.gate.of_type(kind))
        return self.gate.of_type(kind)

    def tell_next(self, *nexts):
        grants = tuple(self.gate.open.values())
        permits = Permits(grants=grants, nexts=nexts)
        self.gate.channel.send(streams.permits("j-1", "r"), permits)

    def next(self, device, **changes):
        held = self.gate.open[device]
        told = {"job": "j-2", "waits": True, "ready_s": 0.0, "start_s": 600.0, **changes}
        return Next(device=device, epoch=held.epoch, seq=held.seq, **told)

    def close(self):
        shim.activate(None)
        self.link.end("succeeded", iteration=0, error="", acks_within_s=1.0)
        self.open = False
        self.listener.join()


@pytest.fixture
def job(hub, make_config, gate):
    spec = {"engine": Engine.REAL, "model_path": "", "recipe": "grpo"}
    rollout = RolloutSpec(devices=2, max_tokens=2000, max_num_seqs=8)
    job = Job(hub, make_config(rollout=BOTH, **(spec | {"rollout_spec": rollout})), gate)
    yield job
    job.close()


@pytest.fixture
def make_config(make_config):
    def make(*, rollout_spec=None, **given):
        import dataclasses

        config = make_config(**given)
        spec = dataclasses.replace(config.spec, rollout=rollout_spec) if rollout_spec else None
        return dataclasses.replace(config, spec=spec or config.spec)

    return make


def rollout(function):
    return phase("rollout")(function)


def grant_when_wanted(job, *devices):
    wait_for(lambda: job.gate.report and any(job.gate.report.status.wants))
    for device in devices:
        job.gate.grant(device, "rollout", 0)


def in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_rollout_begins_on_its_first_device_and_takes_in_the_other_one(job):
    def later():
        grant_when_wanted(job, "r/1")
        wait_for(lambda: ("wake", PoolKind.ROLLOUT, ["r/1"]) in job.engines.calls)
        job.gate.grant("r/0", "rollout", 0)

    helper = in_thread(later)
    rollout(lambda: wait_for(lambda: job.engines.own_fleet.joined))()
    helper.join()
    assert job.engines.calls == [
        ("wake", PoolKind.ROLLOUT, ["r/1"]),
        ("wake", PoolKind.ROLLOUT, ["r/0"]),
        ("park", PoolKind.ROLLOUT, ["r/0", "r/1"]),
    ]
    wait_for(lambda: set(job.gate.ended) == set(BOTH))
    [start], [end] = job.told(EventType.PHASE_START), job.told(EventType.PHASE_END)
    [joined] = job.told(EventType.DEVICE_JOINED)
    assert start.data["devices"] == ["r/1"]
    assert (joined.device, joined.data["seq"]) == ("r/0", job.gate.ended["r/0"][0].seq)
    assert end.data["whole"] is False


def test_one_that_gets_all_devices_at_once_is_whole(job):
    helper = in_thread(lambda: grant_when_wanted(job, *BOTH))
    rollout(lambda: None)()
    helper.join()
    assert job.engines.calls == [
        ("wake", PoolKind.ROLLOUT, None),
        ("park", PoolKind.ROLLOUT, None),
    ]
    assert job.told(EventType.PHASE_END)[0].data["whole"] is True


def test_a_rollout_that_ends_without_a_device_wants_it_no_more_and_declines_it(job):
    helper = in_thread(lambda: grant_when_wanted(job, "r/0"))
    rollout(lambda: None)()
    helper.join()
    wait_for(lambda: job.gate.report.status.wants == ())
    job.gate.grant("r/1", "rollout", 0)
    wait_for(lambda: "r/1" in job.gate.ended)
    assert job.gate.ended["r/1"][1].state == "parked"
    assert job.engines.calls[-1] == ("park", PoolKind.ROLLOUT, ["r/0"])


def test_stragglers_move_together_and_the_freed_device_is_given_back_at_once(job):
    fleet = job.engines.own_fleet
    fleet.done = [FinishedLength(tokens=10 + n, at_limit=False) for n in range(40)]
    fleet.done += [FinishedLength(tokens=1900, at_limit=False) for _ in range(4)]
    given_back = threading.Event()

    def function():
        homes = job.session.config.placement.rollout
        fleet.homes = {7: homes[0], 8: homes[1]}

        def keep_telling():
            while not given_back.is_set():
                job.tell_next(*(job.next(d) for d in BOTH if d in job.gate.open))
                given_back.wait(0.02)

        teller = in_thread(keep_telling)
        wait_for(lambda: len(job.gate.ended) == 1, timeout_s=10.0)
        given_back.set()
        teller.join()

    helper = in_thread(lambda: grant_when_wanted(job, *BOTH))
    rollout(function)()
    helper.join()
    [freed] = map(str, fleet.left)
    kept = next(device for device in BOTH if device != freed)
    assert job.engines.calls[-2:] == [
        ("park", PoolKind.ROLLOUT, [freed]),
        ("park", PoolKind.ROLLOUT, [kept]),
    ]
    wait_for(lambda: set(job.gate.ended) == set(BOTH))
    assert job.gate.ended[freed][1].pids == (int(freed[-1]),)
    [moved], [left] = job.told(EventType.TAIL_MOVED), job.told(EventType.DEVICE_LEFT)
    assert (moved.data["freed"], moved.data["kept"], left.device) == ([freed], [kept], freed)
    assert (moved.data["requests"], moved.data["exact"], moved.data["next"]) == (1, 1, "j-2")
    assert moved.data["gain_device_s"] > 0
    assert job.told(EventType.PHASE_END)[0].data["whole"] is False


@pytest.mark.parametrize("told", [{"job": "", "waits": False, "ready_s": None}, {"start_s": 3.0}])
def test_nothing_moves_for_nobody_nor_beyond_the_planned_start(job, told):
    """2000 tokens at 10 ms are 20 s: too long for a start planned in 3 s."""
    fleet = job.engines.own_fleet
    fleet.done = [FinishedLength(tokens=1900, at_limit=False) for _ in range(44)]

    def function():
        homes = job.session.config.placement.rollout
        fleet.homes = {7: homes[0], 8: homes[1]}
        for _ in range(40):
            job.tell_next(*(job.next(device, **told) for device in BOTH))
            threading.Event().wait(0.02)

    helper = in_thread(lambda: grant_when_wanted(job, *BOTH))
    rollout(function)()
    helper.join()
    assert fleet.left == []


def test_an_error_of_a_late_device_interrupts_the_phase_and_is_raised(job):
    job.engines.error = BackendError("the worker died", code="backend.died")

    def function():
        job.gate.grant("r/1", "rollout", 0)
        assert job.interrupted.wait(5.0)
        raise KeyboardInterrupt

    helper = in_thread(lambda: grant_when_wanted(job, "r/0"))
    with pytest.raises(BackendError, match="the worker died"):
        rollout(function)()
    helper.join()
    assert job.session.failure is job.engines.error
    wait_for(lambda: set(job.gate.ended) == set(BOTH))
    assert job.engines.calls[-1] == ("park", PoolKind.ROLLOUT, ["r/0"])


def test_the_lengths_of_a_rollout_are_known_to_the_next_attempt(job, make_config):
    from rmux.run.driver.tail_facts import Lengths

    job.engines.own_fleet.done = [FinishedLength(tokens=n, at_limit=False) for n in (3, 5, 5)]
    helper = in_thread(lambda: grant_when_wanted(job, *BOTH))
    rollout(lambda: None)()
    helper.join()
    again = Lengths(job.session.config.run_dir / "lengths.json", limit_tokens=2000)
    assert again.survival((), ()).at(3) == pytest.approx(2 / 3)


def test_a_job_one_step_off_policy_begins_on_all_of_its_devices(hub, make_config, gate):
    spec = {"engine": Engine.REAL, "max_staleness": 1}
    rollout_spec = RolloutSpec(devices=2)
    job = Job(hub, make_config(rollout=BOTH, rollout_spec=rollout_spec, **spec), gate)

    def later():
        grant_when_wanted(job, "r/1")
        threading.Event().wait(0.1)
        assert job.engines.calls == []
        job.gate.grant("r/0", "rollout", 0)

    helper = in_thread(later)
    rollout(lambda: None)()
    helper.join()
    job.close()
    assert job.engines.calls[0] == ("wake", PoolKind.ROLLOUT, None)


@pytest.mark.parametrize(
    ("changes", "migrates"),
    [
        ({}, True),
        ({"rollout": RolloutSpec(devices=1)}, False),
        ({"rollout": RolloutSpec(devices=2, migrate=False)}, False),
        ({"recipe": None, "script": "s.py"}, False),
        (
            {
                "recipe": None,
                "script": "s.py",
                "rollout": RolloutSpec(devices=2, migrate=True),
            },
            True,
        ),
        ({"engine": Engine.EMULATED}, False),
    ],
)
def test_recipes_move_unless_told_otherwise_and_scripts_when_they_ask(changes, migrates):
    given = {"name": "small", "rollout": RolloutSpec(devices=2), **changes}
    assert JobSpec(**given).migrates is migrates


def test_a_train_holds_all_of_its_devices(job):
    helper = in_thread(lambda: grant_when_wanted(job, *BOTH))
    rollout(lambda: None)()
    helper.join()

    def grant():
        wait_for(lambda: any(w.phase == Phase.TRAIN for w in job.gate.report.status.wants))
        job.gate.grant("t/0", "train", 0)

    helper = in_thread(grant)
    phase("train")(lambda: None)()
    helper.join()
    assert job.engines.calls[-2:] == [
        ("wake", PoolKind.TRAIN, None),
        ("park", PoolKind.TRAIN, None),
    ]
