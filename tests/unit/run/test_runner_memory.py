"""Host memory of a node: whose processes count where."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rmux.ids import NodeId
from rmux.run import processes
from rmux.run.messages import DeviceUse, DriverReport, DriverStatus
from rmux.run.runner.memory import NodeMemory

MIB = 2**20
HOLD = "b = bytearray({mib} << 20); print('held', flush=True); input()"


@pytest.fixture
def attempt():
    """Tag and pids of three processes of one attempt: driver, rollout worker, training rank."""
    tag = f"rxtest{uuid.uuid4().hex[:8]}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD.format(mib=mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, processes.TAG_VARIABLE: tag},
        )
        for mib in (20, 40, 80)
    ]
    for child in children:
        assert child.stdout.readline() == b"held\n"
    yield tag, *(child.pid for child in children)
    for child in children:
        child.communicate(b"\n")


def report(driver, **pids):
    uses = tuple(
        DeviceUse(device=f"{node}/0", epoch=1, seq=1, state="parked", pids=found)
        for node, found in pids.items()
    )
    return DriverReport(
        status=DriverStatus(job="a", attempt=1, state="running"), pid=driver, uses=uses
    )


def mib(memory, idle):
    return (memory.measure().resident_bytes - idle) / MIB


def test_a_device_counts_at_its_node_and_the_rest_of_a_job_at_its_home(attempt):
    tag, driver, worker, rank = attempt
    roll, train = NodeMemory(NodeId("roll")), NodeMemory(NodeId("train"))
    idle = roll.measure().resident_bytes
    assert idle > MIB, "the runner itself"
    for memory, is_home in ((roll, False), (train, True)):
        memory.learn(report(driver, roll=(worker,)), tag=tag, is_home=is_home)
        memory.learn(report(driver, train=(rank,)), tag=tag, is_home=is_home)
    assert 40 <= mib(roll, idle) < 60
    assert 100 <= mib(train, idle) < 140
    assert roll.measure().jobs["a"] >= 40 * MIB, "each job's part is known"


def test_shared_memory_counts_once_whether_it_is_mapped_or_not(attempt):
    tag, driver, worker, _ = attempt
    memory = NodeMemory(NodeId("roll"))
    memory.learn(report(driver, roll=(worker,)), tag=tag, is_home=False)
    before = memory.measure().jobs["a"]
    path = Path(f"/dev/shm/{tag}-roll-weights.0")
    path.write_bytes(bytes(30 * MIB))
    try:
        unmapped = memory.measure().jobs["a"] - before
        hold = (
            "import mmap, sys; f = open(sys.argv[1], 'rb');"
            "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); s = sum(m[::4096]);"
            "print('held', flush=True); input()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, processes.TAG_VARIABLE: tag},
        ) as reader:
            assert reader.stdout.readline() == b"held\n"
            memory.learn(report(driver, roll=(worker, reader.pid)), tag=tag, is_home=False)
            mapped = memory.measure().jobs["a"] - before
            reader.communicate(b"\n")
    finally:
        path.unlink()
    # Loose: how many processes share the pages of the interpreter changes meanwhile.
    assert 25 * MIB <= unmapped < 40 * MIB
    assert 25 * MIB <= mapped < 55 * MIB, "the reader itself is some of it, twice would be 60"


def test_a_driver_that_works_itself_counts_at_its_home_alone(attempt):
    tag, driver, *_ = attempt
    roll, train = NodeMemory(NodeId("roll")), NodeMemory(NodeId("train"))
    idle = roll.measure().resident_bytes
    for memory, is_home in ((roll, False), (train, True)):
        memory.learn(report(driver, roll=(driver,), train=(driver,)), tag=tag, is_home=is_home)
    assert mib(roll, idle) < 5
    assert mib(train, idle) >= 140


def test_a_job_that_has_left_and_an_earlier_attempt_are_forgotten(attempt):
    tag, driver, worker, _ = attempt
    memory = NodeMemory(NodeId("roll"))
    idle = memory.measure().resident_bytes
    memory.learn(report(driver, roll=(worker,)), tag="rxearlier", is_home=False)
    memory.learn(report(driver), tag=tag, is_home=False)
    assert mib(memory, idle) < 5
    memory.learn(report(driver, roll=(worker,)), tag=tag, is_home=False)
    assert mib(memory, idle) >= 40
    memory.keep({"b"})
    assert mib(memory, idle) < 5
