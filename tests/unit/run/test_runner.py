"""The gate of a node, its proofs, and what a runner keeps over its own death."""

from __future__ import annotations

import pytest

from rmux.events import EventType
from rmux.run.messages import (
    DeviceUse,
    DriverOrder,
    DriverReport,
    DriverStatus,
    Grant,
    Grants,
)
from rmux.run.processes import this_process
from rmux.run.runner import saved as saved_file
from rmux.run.runner.gate import Gate, Position
from rmux.run.runner.launch import attempt_tag
from rmux.run.runner.proof import MAX_RUN_NS, WINDOW_S, Proofs
from rmux.run.runner.saved import Saved, SavedDriver

DEVICE = "n/0"
FENCE_GRACE_S = 3.0


def grant(seq: int, *, epoch: int = 1, job: str = "a", attempt: int = 1, device: str = DEVICE):
    return Grant(
        device=device,
        epoch=epoch,
        seq=seq,
        job=job,
        attempt=attempt,
        iteration=0,
        phase="train",
        bound_s=5.0,
    )


def grants(*given: Grant, epoch: int = 1, jobs: str = "ab") -> Grants:
    orders = tuple(DriverOrder(job=job, attempt=1, desired="run", home="n") for job in jobs)
    return Grants(group="g", epoch=epoch, grants=given, drivers=orders)


def report(seq: int, state: str, *, job: str = "a", attempt: int = 1, epoch: int = 1, pids=()):
    return DriverReport(
        status=DriverStatus(job=job, attempt=attempt, state="running"),
        pid=1,
        uses=(DeviceUse(device=DEVICE, epoch=epoch, seq=seq, state=state, pids=pids),),
    )


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[EventType, dict]] = []

    def __call__(self, kind, *, data, **_) -> None:
        self.events.append((kind, data))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def gate(told) -> Gate:
    return Gate([DEVICE, "n/1"], emit=told, fence_grace_s=FENCE_GRACE_S)


def state(gate: Gate) -> tuple[str, int]:
    found = gate.reports(now_s=0)[0]
    return found.state, found.seq


def test_a_grant_goes_through_its_life_once(gate, told):
    assert state(gate) == ("idle", 0)
    gate.take_grants(grants(grant(1)), now_s=0)
    assert state(gate) == ("granted", 1)
    assert gate.passed_on("a", 1) == (grant(1),)
    gate.take_report(report(1, "running"), now_s=1)
    assert state(gate) == ("running", 1)
    gate.take_report(report(1, "parked", pids=(7,)), now_s=2)
    assert state(gate) == ("running", 1), "said to be parked is not proven"
    assert gate.to_prove()[DEVICE].pids == (7,)
    gate.prove(DEVICE, order=(1, 1), now_s=2.5)
    assert state(gate) == ("released", 1)
    assert gate.reports(now_s=0)[0].proof_s == 0.5
    ((kind, data),) = told.events
    assert kind is EventType.RELEASED
    assert data == {"epoch": 1, "seq": 1, "attempt": 1, "proof_s": 0.5, "granted_s": 0}
    assert gate.passed_on("a", 1) == ()


def test_the_same_grant_again_changes_nothing(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    gate.take_report(report(1, "running"), now_s=1)
    before = gate.generation
    gate.take_grants(grants(grant(1)), now_s=2)
    gate.take_report(report(1, "running"), now_s=3)
    assert state(gate) == ("running", 1)
    assert gate.generation == before
    gate.take_report(report(1, "parked"), now_s=4)
    gate.prove(DEVICE, order=(1, 1), now_s=4)
    gate.take_grants(grants(grant(1)), now_s=5)
    gate.take_report(report(1, "running"), now_s=5)
    assert state(gate) == ("released", 1), "a late copy does not wake what was released"


def test_a_successor_waits_until_its_predecessor_is_proven_parked(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    gate.take_report(report(1, "running"), now_s=0)
    gate.take_grants(grants(grant(2, job="b")), now_s=1)
    assert gate.passed_on("b", 1) == ()
    gate.take_report(report(1, "parked", pids=(7,)), now_s=2)
    assert gate.passed_on("b", 1) == ()
    gate.prove(DEVICE, order=(1, 1), now_s=3)
    assert gate.passed_on("b", 1) == (grant(2, job="b"),)


def test_a_lower_grant_is_refused_and_told_once(gate, told):
    gate.take_grants(grants(grant(5)), now_s=0)
    for _ in range(3):
        gate.take_grants(grants(grant(4, job="b")), now_s=1)
    assert state(gate) == ("granted", 5)
    assert [kind for kind, _ in told.events] == [EventType.GATE_REFUSED]


def test_an_old_controller_is_refused_as_a_whole(gate, told):
    assert gate.take_grants(grants(grant(1, epoch=3), epoch=3), now_s=0)
    assert not gate.take_grants(grants(grant(9, epoch=2), epoch=2, jobs=""), now_s=1)
    assert state(gate) == ("granted", 1)
    assert set(gate.orders) == {"a", "b"}, "its orders do not count either"
    assert told.events[0][1]["epoch"] == 2


def test_a_new_epoch_counts_above_every_number_of_the_old_one(gate):
    gate.take_grants(grants(grant(7)), now_s=0)
    gate.take_report(report(7, "parked"), now_s=1)
    gate.prove(DEVICE, order=(1, 7), now_s=1)
    gate.take_grants(grants(grant(1, epoch=2, job="b"), epoch=2), now_s=2)
    assert gate.passed_on("b", 1) == (grant(1, epoch=2, job="b"),)


def test_a_driver_speaks_only_for_its_own_grants(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    gate.take_report(report(1, "parked", job="b"), now_s=1)
    gate.take_report(report(1, "parked", attempt=2), now_s=1)
    assert state(gate) == ("granted", 1)
    assert gate.to_prove() == {}


def test_the_end_of_an_attempt_releases_its_devices_and_passes_on_what_waits(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    gate.take_report(report(1, "running"), now_s=0)
    gate.take_grants(grants(grant(2, job="b")), now_s=1)
    gate.end_attempt(("a", 1), now_s=2)
    assert gate.passed_on("b", 1) == (grant(2, job="b"),)


def test_a_grant_for_an_attempt_that_is_over_is_released_at_once(gate):
    gate.end_attempt(("a", 1), now_s=0)
    gate.take_grants(grants(grant(1)), now_s=1)
    assert state(gate) == ("released", 1)


def test_an_attempt_the_controller_no_longer_lists_is_a_stray(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    assert gate.strays() == set()
    gate.take_grants(grants(jobs="b"), now_s=1)
    assert gate.strays() == {("a", 1)}


def test_a_phase_past_its_bound_and_grace_is_overdue(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    assert gate.overdue(now_s=5 + FENCE_GRACE_S) == {}
    held = f"{grant(1).phase} held {grant(1).device} for more than 5 s"
    assert gate.overdue(now_s=5.1 + FENCE_GRACE_S) == {("a", 1): held}
    assert gate.overdue(now_s=5.1 + FENCE_GRACE_S, graces=2) == {}
    assert gate.reports(now_s=5.1 + FENCE_GRACE_S)[0].overdue == held
    assert gate.reports(now_s=5)[0].overdue == ""


def test_a_gate_without_memory_learns_from_its_drivers(gate):
    gate.take_report(report(9, "running", epoch=4), now_s=0)
    assert gate.epoch == 4
    assert state(gate) == ("running", 9)
    assert not gate.take_grants(grants(grant(10, epoch=3), epoch=3), now_s=1)
    gate.take_report(report(9, "parked", epoch=4), now_s=2)
    gate.prove(DEVICE, order=(4, 9), now_s=2)
    assert state(gate) == ("released", 9)


def test_a_driver_that_declines_a_grant_gives_the_device_back(gate):
    gate.take_grants(grants(grant(1)), now_s=0)
    gate.take_report(report(1, "parked"), now_s=1)
    assert Proofs().check(gate.to_prove()) == {DEVICE: (1, 1)}


class Cpu:
    """A process whose run time the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.run_ns = 0

    def proofs(self) -> Proofs:
        return Proofs(now_s=lambda: self.now_s, run_ns=lambda pids: self.run_ns)


PARKED = {DEVICE: Position(grant=grant(1), state="parked", pids=(7,))}


def test_idle_for_one_window_is_proven():
    cpu = Cpu()
    proofs = cpu.proofs()
    assert proofs.check(PARKED) == {}
    assert proofs.wait_s() == pytest.approx(WINDOW_S)
    cpu.now_s += WINDOW_S / 2
    assert proofs.check(PARKED) == {}
    cpu.now_s += WINDOW_S / 2
    cpu.run_ns += MAX_RUN_NS - 1
    assert proofs.check(PARKED) == {DEVICE: (1, 1)}
    assert proofs.wait_s() is None


def test_a_process_that_still_works_is_not_parked_until_it_stops():
    cpu = Cpu()
    proofs = cpu.proofs()
    proofs.check(PARKED)
    for _ in range(5):
        cpu.now_s += WINDOW_S
        cpu.run_ns += MAX_RUN_NS
        assert proofs.check(PARKED) == {}
    cpu.now_s += WINDOW_S
    assert proofs.check(PARKED) == {DEVICE: (1, 1)}


def test_a_proof_of_one_grant_does_not_count_for_the_next():
    cpu = Cpu()
    proofs = cpu.proofs()
    proofs.check(PARKED)
    cpu.now_s += WINDOW_S
    later = {DEVICE: Position(grant=grant(2), state="parked", pids=(7,))}
    assert proofs.check(later) == {}
    cpu.now_s += WINDOW_S
    assert proofs.check(later) == {DEVICE: (1, 2)}


def test_what_a_runner_saved_it_reads_again(tmp_path):
    driver = SavedDriver(job="a", attempt=2, process=this_process(), tag="t", run_dir="/r")
    positions = {
        DEVICE: Position(grant=grant(3), state="running", since_s=4.0),
        "n/1": Position(grant=grant(2), state="released", since_s=1.0),
        "n/2": Position(),
    }
    path = saved_file.path_of("rx1", "n", folder=tmp_path)
    saved_file.write(path, Saved(epoch=5, positions=positions, drivers=(driver,)))
    found = saved_file.read(path)
    assert found.epoch == 5
    assert found.drivers == (driver,)
    assert found.positions == {
        DEVICE: Position(grant=grant(3), state="granted", since_s=4.0),
        "n/1": Position(grant=grant(2), state="released", since_s=1.0),
    }


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": "another boot"}', "[]", "{}"])
def test_a_file_that_is_no_use_counts_as_none(tmp_path, text):
    path = saved_file.path_of("rx1", "n", folder=tmp_path)
    path.write_text(text)
    assert saved_file.read(path) == Saved()
    assert saved_file.read(tmp_path / "missing.json") == Saved()


def test_a_restarted_gate_still_refuses_what_it_refused_before(told):
    gate = Gate([DEVICE], emit=told, epoch=3, positions={DEVICE: Position(grant=grant(8, epoch=3))})
    gate.take_grants(grants(grant(7, epoch=3), epoch=3), now_s=0)
    assert gate.reports(now_s=0)[0].seq == 8
    assert not gate.take_grants(grants(epoch=2), now_s=0)


def test_the_tag_of_one_attempt_is_no_part_of_anothers():
    assert attempt_tag("rx1", "j-1", 1) not in attempt_tag("rx1", "j-1", 11)
