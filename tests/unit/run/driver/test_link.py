import threading
import time

import pytest

from rmux.clock import ManualClock
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.channel import MemoryChannel
from rmux.run.driver.link import Link
from rmux.run.messages import Permits, streams

BOTH = ("r/0", "r/1")


@pytest.fixture
def make_link(hub, make_config):
    links = []

    def make(**options):
        link = Link(make_config(rollout=BOTH), channel=MemoryChannel(hub), **options)
        links.append(link)
        link.start()
        return link

    yield make
    for link in links:
        link.close()


def hear_until(gate, condition):
    for _ in range(100):
        if gate.hear() is not None and condition(gate.report):
            return gate.report
    raise AssertionError(f"never so: {gate.report}")


def await_both(link, timeout_s=1.0):
    return link.await_grants((BOTH,), timeout_s=timeout_s)


def test_a_phase_waits_until_all_of_its_devices_are_granted(make_link, gate):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=0, devices=BOTH)
    gate.grant("r/0", "rollout", 0)
    report = hear_until(gate, lambda r: [w.devices for w in r.status.wants] == [("r/1",)])
    assert [want.phase for want in report.status.wants] == ["rollout"]
    assert await_both(link, timeout_s=0.01) is None
    gate.grant("r/1", "rollout", 0)
    grants, _ = await_both(link)
    assert [grant.device for grant in grants] == ["r/0", "r/1"]
    report = hear_until(gate, lambda r: len(r.uses) == 2)
    assert {use.state for use in report.uses} == {"running"}
    assert report.status.wants == ()


def test_two_phases_are_wanted_at_once_and_each_thread_gets_its_own(make_link, gate):
    link, found = make_link(), {}

    def take(phase, iteration, device):
        link.want(phase, iteration=iteration, devices=(device,))
        found[phase] = link.await_grants(((device,),), timeout_s=5.0)

    threads = [
        threading.Thread(target=take, args=(Phase.TRAIN, 3, "t/0")),
        threading.Thread(target=take, args=(Phase.ROLLOUT, 4, "r/0")),
    ]
    for thread in threads:
        thread.start()
    hear_until(gate, lambda r: {w.phase for w in r.status.wants} == {"train", "rollout"})
    gate.grant("r/0", "rollout", 4)
    threads[1].join()
    report = hear_until(gate, lambda r: r.uses)
    assert [(w.phase, w.iteration) for w in report.status.wants] == [("train", 3)]
    gate.grant("t/0", "train", 3)
    threads[0].join()
    assert {phase: grants[0].device for phase, (grants, _) in found.items()} == {
        Phase.TRAIN: "t/0",
        Phase.ROLLOUT: "r/0",
    }


def test_another_thread_can_wait_until_a_phase_was_wanted(make_link):
    link = make_link()
    assert not link.await_wanted(Phase.TRAIN, iteration=1, timeout_s=0.0)
    link.want(Phase.TRAIN, iteration=1, devices=("t/0",))
    link.unwant(Phase.TRAIN)
    assert link.await_wanted(Phase.TRAIN, iteration=1, timeout_s=0.0)
    assert not link.await_wanted(Phase.TRAIN, iteration=2, timeout_s=0.0)


def test_taking_one_want_back_leaves_the_other(make_link, gate):
    link = make_link()
    link.want(Phase.TRAIN, iteration=0, devices=("t/0",))
    link.want(Phase.ROLLOUT, iteration=1, devices=("r/0",))
    link.unwant(Phase.ROLLOUT)
    gate.grant("r/0", "rollout", 1)
    report = hear_until(gate, lambda r: r.uses)
    assert (report.uses[0].device, report.uses[0].state) == ("r/0", "parked")
    assert [want.phase for want in report.status.wants] == ["train"]


@pytest.mark.parametrize(
    "wrong", [{"phase": "train"}, {"iteration": 1}, {"attempt": 2}], ids=lambda wrong: str(wrong)
)
def test_a_grant_for_something_else_starts_nothing(make_link, gate, wrong):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.grant(**{"device": "r/0", "phase": "rollout", "iteration": 0, **wrong})
    assert link.await_grants((("r/0",),), timeout_s=0.03) is None


def test_a_grant_that_is_no_longer_wanted_is_given_back_at_once(make_link, gate):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=1, devices=("r/0",))
    gate.grant("r/0", "rollout", 0)
    report = hear_until(gate, lambda r: r.uses)
    assert (report.uses[0].state, report.uses[0].seq) == ("parked", gate.seq)


def test_a_lower_order_never_replaces_a_higher_one(make_link, gate):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.grant("r/0", "rollout", 1, epoch=2, seq=1)
    hear_until(gate, lambda r: r.uses)
    gate.grant("r/0", "rollout", 0, epoch=1, seq=9)
    assert link.await_grants((("r/0",),), timeout_s=0.03) is None


def test_a_used_grant_is_not_used_again(make_link, gate):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.grant("r/0", "rollout", 0)
    grants, _ = link.await_grants((("r/0",),), timeout_s=1.0)
    link.parked(grants, pids={"r/0": (7,)})
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.announce()
    assert link.await_grants((("r/0",),), timeout_s=0.03) is None
    report = hear_until(gate, lambda r: r.uses and r.uses[0].state == "parked")
    assert report.uses[0].pids == (7,)


def test_the_position_is_repeated_on_every_heartbeat(make_link, gate):
    link = make_link()
    link.report_status("running", iteration=3)
    hear_until(gate, lambda r: r.status.iteration == 3)
    while gate.channel.receive(0.01):
        pass
    assert gate.channel.receive(1.0)[0][1].status.iteration == 3


def test_events_are_repeated_until_they_are_acknowledged(make_link, gate):
    link = make_link()
    gate.acks = False
    for _ in range(2):
        link.emit(EventType.PROGRESS, phase=Phase.ROLLOUT, data={"tokens": 5})
    hear_until(gate, lambda r: len(r.events) == 2)
    hear_until(gate, lambda r: [e["source_n"] for e in r.events] == [1, 2])
    gate.acks = True
    gate.announce()
    hear_until(gate, lambda r: not r.events)
    assert gate.events["j-1/1", 2].data == {"tokens": 5, "attempt": 1}


def test_many_events_go_out_in_several_reports(make_link, gate):
    link = make_link()
    for _ in range(450):
        link.emit(EventType.CHECKPOINT, prompt=False)
    gate.serve()
    link.end("succeeded", iteration=1, error="", acks_within_s=2.0)
    gate.stop()
    assert sorted(n for _, n in gate.events) == list(range(1, 451))


def test_progress_is_dropped_before_anything_else_is(make_link, gate):
    link = make_link()
    gate.acks = False
    for _ in range(1000):
        link.emit(EventType.PROGRESS, prompt=False)
    link.emit(EventType.PROGRESS, prompt=False)
    link.emit(EventType.ITERATION_END, prompt=False)
    assert link._source_n == 1001


def test_the_most_urgent_order_of_any_gate_counts(make_link, gate):
    link = make_link()
    gate.channel.send(streams.permits("j-1", "t"), Permits(desired="pause"))
    gate.channel.send(streams.permits("j-1", "r"), Permits())
    assert link.await_desired(lambda order: order == "pause", timeout_s=1.0)


def test_an_order_that_cannot_wait_interrupts(make_link, gate):
    called = threading.Event()
    make_link(on_interrupt=called.set)
    gate.desired = "cancel"
    gate.announce()
    assert not called.wait(0.02)
    gate.desired = "cancel-now"
    gate.announce()
    assert called.wait(1.0)


def test_an_orphan_says_so_and_keeps_its_grants(make_link, gate, caplog):
    clock = ManualClock()
    link = make_link(clock=clock)
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.grant("r/0", "rollout", 0)
    assert link.await_grants((("r/0",),), timeout_s=1.0)
    clock.sleep_s(10.0)
    deadline_s = time.monotonic() + 2.0
    while "no gate has spoken" not in caplog.text and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert "no gate has spoken for 10.0 s" in caplog.text
    assert gate.hear().uses[0].state == "running"


def test_a_report_that_cannot_be_made_ends_the_job_and_its_last_words_still_go_out(
    make_link, gate, caplog
):
    interrupted = threading.Event()
    link = make_link(on_interrupt=interrupted.set)
    error = KeyError("gone")

    def shed():
        raise error

    link.shed = shed
    link.report_status("running", iteration=3)
    assert interrupted.wait(5.0)
    assert link.failure is error
    assert "link-out failed" in caplog.text
    link.end("failed", iteration=3, error="boom", acks_within_s=0.01)
    hear_until(gate, lambda r: (r.status.state, r.status.error) == ("failed", "boom"))


def test_a_word_of_a_gate_that_breaks_its_reader_ends_the_job(make_link, gate):
    interrupted = threading.Event()
    link = make_link(on_interrupt=interrupted.set)
    heard = []

    def hear(name, permits):
        heard.append(name)
        if len(heard) == 1:
            raise ValueError("not so")

    link.on_permits = hear
    gate.announce()
    assert interrupted.wait(5.0)
    assert str(link.failure) == "not so"


def test_the_end_gives_every_device_back(make_link, gate):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.grant("r/0", "rollout", 0)
    assert link.await_grants((("r/0",),), timeout_s=1.0)
    link.end("failed", iteration=0, error="boom", acks_within_s=0.01)
    gate.hear()
    assert (gate.report.status.state, gate.report.status.error) == ("failed", "boom")
    assert [use.state for use in gate.report.uses] == ["parked"]


def test_the_gate_is_seen_to_withdraw_a_grant(make_link, gate):
    link = make_link()
    link.want(Phase.ROLLOUT, iteration=0, devices=("r/0",))
    gate.grant("r/0", "rollout", 0)
    grants, _ = link.await_grants((("r/0",),), timeout_s=1.0)
    link.parked(grants, pids={})
    assert not link.await_withdrawn(grants, timeout_s=0.01)
    gate.open.clear()
    gate.announce()
    assert link.await_withdrawn(grants, timeout_s=1.0)
