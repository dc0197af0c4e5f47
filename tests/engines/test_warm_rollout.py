"""A parked rollout worker keeps no second copy of its weights, and wakes from the host cache."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmux.errors import CheckError, ConflictError, WorkerError
from rmux.run import processes

CYCLES = 200
MAX_GROWTH_BYTES = 2 * 2**20
"""Over all cycles, by the slope of the memory of the process; the weights are 1.2 MB."""
SEQUENCES = [list(range(40)), [7, 8, 9]]


@pytest.fixture(scope="module")
def rollout(start_rollout):
    return start_rollout()


def pid_of(rollout) -> int:
    return rollout.session.get(rollout.handles[0].actor.pid.remote())


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def discard(rollout) -> int:
    handle = rollout.handles[0]
    handle.awake = False
    return rollout.session.get(handle.actor.park_discarded.remote(rollout.files))


def slope(values: list[int]) -> float:
    """Least squares, per step."""
    middle = (len(values) - 1) / 2
    weights = [index - middle for index in range(len(values))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(w * w for w in weights)


def test_weights_without_a_copy_in_the_cache_are_not_discarded(rollout):
    rollout.wake()
    before = rollout.score(SEQUENCES)
    with pytest.raises(ConflictError, match="without a copy"):
        discard(rollout)
    assert rollout.score(SEQUENCES) == before
    rollout.park()


def test_two_hundred_cycles_are_bit_equal_without_a_second_copy_and_without_growth(
    rollout, reference
):
    pid, memory, freed = pid_of(rollout), [], set()
    reference.move(3)
    tensors = reference.tensors()
    weights_bytes = sum(tensor.numel() * 4 for tensor in tensors.values())
    rollout.publish(1, tensors)
    rollout.wake()
    expected = rollout.score(SEQUENCES)
    for cycle in range(CYCLES):
        freed.add(discard(rollout))
        (report,) = rollout.wake()
        assert report.reloaded
        if cycle % 20 == 0:
            assert rollout.score(SEQUENCES) == expected
            assert rollout.files.stem not in Path(f"/proc/{pid}/maps").read_text()
        memory.append(pss_bytes(pid))
    assert rollout.score(SEQUENCES) == expected
    (freed_bytes,) = freed
    assert freed_bytes >= weights_bytes, "the packed head comes on top of the embedding"
    assert slope(memory[CYCLES // 4 :]) * CYCLES < MAX_GROWTH_BYTES
    rollout.park()


def test_a_parked_worker_uses_no_cpu(rollout):
    pid = pid_of(rollout)
    rollout.wake()
    discard(rollout)
    used_ns = []
    for _ in range(20):
        before = processes.run_time_ns([pid])
        time.sleep(0.005)
        used_ns.append(processes.run_time_ns([pid]) - before)
    assert sorted(used_ns)[len(used_ns) // 2] < 1e6


def test_a_damaged_cache_is_noticed_before_anything_is_sampled_and_the_engine_refuses_to_run(
    rollout, reference
):
    rollout.publish(2, reference.tensors())
    discard(rollout)
    slots = [path for path in (rollout.files.slot(0), rollout.files.slot(1)) if path.exists()]
    for path in slots:
        raw = bytearray(path.read_bytes())
        raw[1000] ^= 1
        path.write_bytes(raw)
    with pytest.raises(CheckError, match="weight version 2 in the host cache has checksum"):
        rollout.wake()
    with pytest.raises(WorkerError, match="no weights"):
        rollout.session.get(rollout.handles[0].actor.wake.remote(None))
    rollout.publish(3, reference.tensors())
    assert rollout.wake()[0].version == 3
