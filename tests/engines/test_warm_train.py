"""Parked training ranks of each ZeRO stage: forced moves are bit-equal, flat in memory, idle."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from rmux.job import TrainSpec
from rmux.run import processes
from rmux.run.driver.engines import Response, Sample
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers.deepspeed import TrainRank
from rmux.run.workers.train_batch import MiniBatch, deal
from rmux.run.workers.train_terms import RankSettings

STAGES = (1, 2, 3)
CYCLES = 200
MAX_GROWTH_BYTES = 2**20
"""Over all cycles, by the slope of the memory of the process: 5 KiB per cycle would be too much."""


class ProbedRank(TrainRank):
    """A rank that looks at all of its state."""

    def digest(self) -> str:
        import torch
        import xxhash

        from rmux.run.workers.train_state_moved import memory_of

        digest = xxhash.xxh3_128()
        for storage in self._ready().state.copies._storages():
            digest.update(memory_of(torch.empty(0, dtype=torch.uint8).set_(storage)))
        return digest.hexdigest()

    def state_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._ready().state.copies._storages())

    def cycle(self, count: int) -> tuple[set[int], set[str], list[int]]:
        """Moves out and back; what each moved, what the state was after it, memory meanwhile."""
        moved, digests, memory = set(), set(), []
        for _ in range(count):
            moved.add(self.park_moved())
            assert self.state_bytes() == 0, "something stayed on the device"
            self.wake()
            digests.add(self.digest())
            memory.append(_private_bytes())
        return moved, digests, memory


def _private_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def slope(values: list[int]) -> float:
    """Least squares, per step."""
    middle = (len(values) - 1) / 2
    weights = [index - middle for index in range(len(values))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(w * w for w in weights)


@pytest.fixture(scope="module")
def session():
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = Path(f"/tmp/rx-{time.monotonic_ns() % 10**9}")
    folder.mkdir(mode=0o700)
    session = RaySession(job_id="j-warm", temp_dir=folder, run_tag=folder.name)
    session.start()
    yield session
    session.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def ranks(session, tiny_model):
    """A rank per stage, each a world of its own, after one optimizer step."""
    actors = {}
    for stage in STAGES:
        settings = RankSettings(
            model_path=str(tiny_model),
            rank=0,
            ranks=1,
            cores=(sorted(os.sched_getaffinity(0))[-1],),
            address="127.0.0.1",
            seed=5,
            train=TrainSpec(devices=1, mini_batch=4, micro_batch=4, zero_stage=stage),
            temperature=1.0,
        )
        actors[stage] = session.actor(ProbedRank, settings, name=f"rank {stage}", threads=2)
    session.get([actor.prepare.remote() for actor in actors.values()], timeout_s=120)
    for actor in actors.values():
        port = session.get(actor.listen.remote())
        session.get(actor.init.remote(port), timeout_s=120)
        session.get(actor.step.remote([batch()], None), timeout_s=120)
    return actors


def batch() -> MiniBatch:
    response = Response(
        prompt_tokens=(1, 2, 3),
        tokens=(7, 8, 9, 10),
        logprobs=(-4.0,) * 4,
        weight_version=0,
        finish_reason="length",
    )
    samples = tuple(Sample(response=response, advantage=sign) for sign in (1.0, -0.5))
    return deal(samples, mini_batch=4, micro_batch=4, ranks=1)[0][0]


@pytest.mark.parametrize("stage", STAGES)
def test_two_hundred_moves_are_bit_equal_and_memory_stays_flat(
    session, ranks, tiny_model, stage, tmp_path
):
    rank = ranks[stage]
    before = session.get(rank.digest.remote())
    size = session.get(rank.state_bytes.remote())
    session.get(rank.save.remote(str(tmp_path)))
    moved, digests, memory = session.get(rank.cycle.remote(CYCLES), timeout_s=60)
    assert digests == {before}
    assert moved == {size}
    weights = (tiny_model / "model.safetensors").stat().st_size
    # ZeRO 1, 2: weights, master copy, two moments; 3 steps the weights themselves, has gradients.
    assert size >= 0.98 * 4 * weights, "weights, master copy or gradients, and both moments"
    settled = memory[CYCLES // 4 :]
    assert slope(settled) * CYCLES < MAX_GROWTH_BYTES

    session.get(rank.step.remote([batch()], None), timeout_s=120)
    after = session.get(rank.checksum.remote()) if stage < 3 else ""
    stepped = session.get(rank.digest.remote())
    assert stepped != before
    session.get(rank.restore.remote(str(tmp_path)))
    session.get(rank.step.remote([batch()], None), timeout_s=120)
    assert session.get(rank.digest.remote()) == stepped
    assert after == "" or session.get(rank.checksum.remote()) == after


@pytest.mark.parametrize("stage", STAGES)
def test_a_moved_rank_refuses_work_but_still_gives_its_weights_and_its_checkpoint(
    session, ranks, stage, tmp_path
):
    rank = ranks[stage]
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    checksum = session.get(rank.checksum.remote())
    session.get(rank.save.remote(str(tmp_path / "here")))
    session.get(rank.park_moved.remote())
    with pytest.raises(Exception, match="wake it first"):
        session.get(rank.step.remote([batch()], None))
    assert session.get(rank.checksum.remote()) == checksum
    session.get(rank.save.remote(str(tmp_path / "there")))
    name = "part-0000-of-0001.safetensors"
    assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    session.get(rank.wake.remote())


@pytest.mark.parametrize("stage", STAGES)
def test_a_moved_rank_uses_no_cpu(session, ranks, stage):
    rank = ranks[stage]
    pid = session.get(rank.pid.remote())
    session.get(rank.park_moved.remote())
    used_ns = []
    for _ in range(20):
        before = processes.run_time_ns([pid])
        time.sleep(0.005)
        used_ns.append(processes.run_time_ns([pid]) - before)
    session.get(rank.wake.remote())
    assert sorted(used_ns)[len(used_ns) // 2] < 1e6
