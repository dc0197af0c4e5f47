"""Training ranks on real DeepSpeed, alone: steps, gaps, checkpoints, sync, parking."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rmux.cluster import DeviceId, Node
from rmux.errors import StaleWeightsError, WorkerError
from rmux.group import Placement
from rmux.ids import NodeId, PoolName
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.run import processes
from rmux.run.driver.engines import DriverConfig, Response, Sample
from rmux.run.driver.ray_session import RaySession
from rmux.run.driver.trainer import RayTrainer
from rmux.run.workers.cache import CacheFiles, HostWeightCache, open_tensors

pytestmark = [pytest.mark.engines, pytest.mark.slow]

CORE = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Qwen3 of random weights, as the examples make it but smaller."""
    folder = tmp_path_factory.mktemp("model")
    script = (
        "import sys, torch\n"
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
        "torch.manual_seed(3)\n"
        "Qwen3ForCausalLM(Qwen3Config(vocab_size=64, hidden_size=64, intermediate_size=128,"
        " num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,"
        " max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,"
        " eos_token_id=None, pad_token_id=None)).save_pretrained(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def temp_dir():
    path = Path(f"/tmp/rx-{time.monotonic_ns() % 10**9}")
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def session(temp_dir):
    session = RaySession(job_id="j-train", temp_dir=temp_dir, run_tag=temp_dir.name)
    session.start()
    yield session
    session.close()
    assert not processes.tagged(f"{temp_dir.name}-ray")
    assert not list(Path("/dev/shm").glob("deepspeed_*"))


def config_of(model, temp_dir, *, devices=1, micro_batch=4, zero_stage=1):
    node = Node(
        id=NodeId("train-0"),
        pool=PoolName("train"),
        host="here",
        device_kind="cpu",
        num_devices=devices,
        cores=((CORE,),) * devices,
        host_memory_bytes=2**33,
    )
    spec = JobSpec(
        name="train",
        model_path=str(model),
        seed=5,
        rollout=RolloutSpec(max_prompt_tokens=64, max_tokens=96),
        train=TrainSpec(
            devices=devices, mini_batch=8, micro_batch=micro_batch, zero_stage=zero_stage
        ),
    )
    return DriverConfig(
        job_id="j-train",
        group_id="g",
        attempt=1,
        spec=spec,
        placement=Placement(
            rollout=(), train=tuple(DeviceId(node.id, index) for index in range(devices))
        ),
        nodes=(node,),
        run_dir=temp_dir,
        temp_dir=temp_dir,
        run_tag=temp_dir.name,
        channel_url="",
        heartbeat_s=1.0,
        gates=(),
    )


@pytest.fixture
def start(model, temp_dir, session):
    """Makes a trainer that is ready to step; ends its processes afterwards."""
    started = []

    def make(caches=(), **changes):
        trainer = RayTrainer(config_of(model, temp_dir, **changes), session, caches)
        trainer.prepare()
        trainer.init()
        started.append(trainer)
        return trainer

    yield make
    for trainer in started:
        pids = [trainer.pids(device)[0] for device in trainer._config.placement.train]
        trainer.close()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cache(temp_dir, session):
    handle = session.actor(
        HostWeightCache, run_tag=temp_dir.name, node="roll-0", name="weight cache"
    )
    session.meet(handle)
    yield handle
    session.get(handle.close.remote())


def samples_of(trainer, *, count=16, seed=0, version=None, shift=0.0):
    """Responses whose log-probabilities are the trainer's own, as an exact engine would give."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        prompt = tuple(rng.randrange(64) for _ in range(6))
        tokens = tuple(rng.randrange(64) for _ in range(rng.randrange(3, 20)))
        scored = trainer._on_all("score", [prompt + tokens], timeout_s=60)[0][0]
        response = Response(
            prompt_tokens=prompt,
            tokens=tokens,
            logprobs=tuple(value + shift for value in scored[len(prompt) - 1 :]),
            weight_version=trainer.weights_version if version is None else version,
            finish_reason="length",
        )
        made.append(Sample(response=response, advantage=(-1.0) ** index))
    return made


def checksum(trainer):
    trainer.park()  # the ranks of ZeRO 3 exchange what they will send
    return trainer._on_first("checksum", timeout_s=60)


def test_a_step_changes_the_weights_and_the_same_seed_changes_them_equally(start):
    reports, sums = [], []
    for _ in range(2):
        trainer = start()
        before = checksum(trainer)
        reports.append(trainer.step(samples_of(trainer)))
        sums.append(checksum(trainer))
        assert sums[-1] != before
    assert sums[0] == sums[1]
    assert reports[0] == reports[1]
    assert reports[0].steps == 2
    assert reports[0].max_logprob_gap < 1e-5
    assert reports[0].metrics["train_tokens"] > 100
    assert reports[0].metrics["grad_norm"] > 0


def test_samples_of_other_weights_are_refused_and_no_step_is_taken(start):
    trainer = start()
    before = checksum(trainer)
    with pytest.raises(WorkerError, match="not on-policy") as caught:
        trainer.step(samples_of(trainer, shift=2e-3))
    assert caught.value.code == "policy.gap"
    assert caught.value.details["gap"] == pytest.approx(2e-3, rel=0.01)
    with pytest.raises(StaleWeightsError):
        trainer.step(samples_of(trainer, version=3))
    assert checksum(trainer) == before
    good = samples_of(trainer)
    trainer.step(good)
    other = start()
    other.step(good)
    assert checksum(trainer) == checksum(other), "the refused step left something behind"


@pytest.fixture(scope="module")
def one_rank(model, temp_dir, session):
    """What one rank in two passes of 4 makes of 13 samples."""
    trainer = RayTrainer(config_of(model, temp_dir), session)
    trainer.prepare()
    trainer.init()
    before, samples = trainer.gate_reference(), samples_of(trainer, count=13)
    report = trainer.step(samples)
    after = trainer.gate_reference()
    trainer.close()
    return before, samples, report, after


def apart(one, other):
    rows = zip(one.logprobs, other.logprobs, strict=True)
    return max(abs(a - b) for mine, theirs in rows for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("devices", "micro_batch", "zero_stage"),
    [(1, 8, 1), (1, 3, 2), (2, 2, 1), (2, 4, 2), (1, 4, 3), (2, 3, 3)],
)
def test_gradients_and_weights_do_not_depend_on_ranks_passes_or_stage(
    start, one_rank, devices, micro_batch, zero_stage
):
    before, samples, expected, after = one_rank
    trainer = start(devices=devices, micro_batch=micro_batch, zero_stage=zero_stage)
    report = trainer.step(samples)
    for name, value in expected.metrics.items():
        assert report.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name
    assert apart(before, after) > 0.01
    assert apart(trainer.gate_reference(), after) < 2e-4


def test_a_restored_trainer_is_bit_equal_and_so_is_its_next_step(start, tmp_path):
    trainer = start()
    trainer.step(samples_of(trainer))
    folder = tmp_path / "it-1"
    folder.mkdir()
    written = trainer.save(folder)
    assert written == sum(path.stat().st_size for path in folder.iterdir())
    following = samples_of(trainer, seed=1)

    restored = start()
    assert checksum(restored) != checksum(trainer)
    restored.restore(folder)
    assert checksum(restored) == checksum(trainer)
    assert restored.gate_reference() == trainer.gate_reference()
    for each in (trainer, restored):
        each.step(following)
    assert checksum(restored) == checksum(trainer)


@pytest.mark.parametrize(("stage", "other"), [(3, 2)])
def test_a_checkpoint_is_restored_by_ranks_of_another_number_and_stage(
    start, tmp_path, stage, other
):
    two = start(devices=2, zero_stage=stage)
    two.step(samples_of(two))
    two.save(tmp_path)
    following = samples_of(two, seed=1)
    one = start(zero_stage=other)
    one.restore(tmp_path)
    assert checksum(one) == checksum(two)
    again = tmp_path / "again"
    again.mkdir()
    one.save(again)
    back = start(devices=2, zero_stage=stage)
    back.restore(again)
    assert checksum(back) == checksum(two)
    for each in (two, back):
        each.step(following)
    assert checksum(back) == checksum(two), "the optimizer's state came back otherwise"


@pytest.mark.parametrize(("devices", "stage"), [(1, 1), (2, 1), (2, 3)])
def test_published_weights_arrive_bit_equal_with_the_tied_head(
    start, cache, temp_dir, devices, stage
):
    import torch

    trainer = start(caches=[cache], devices=devices, zero_stage=stage)
    trainer.step(samples_of(trainer))
    assert trainer.gate_reference().version == 1
    report = trainer.publish(None)
    weights, tensors = open_tensors(CacheFiles.of(temp_dir.name, "roll-0"))
    assert (report.version, trainer.weights_version, weights.version) == (1, 1, 1)
    assert report.checksum == weights.checksum == checksum(trainer)
    assert report.sent_bytes == weights.num_bytes
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert len(tensors) == 25
    again = trainer.publish(None)
    assert (again.version, again.checksum) == (1, report.checksum), "nothing was trained since"


def test_a_parked_rank_uses_no_cpu_and_runs_on_its_core_only(start):
    trainer = start()
    trainer.step(samples_of(trainer))
    trainer.park()
    (pid,) = trainer.pids(DeviceId(NodeId("train-0"), 0))
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    assert {core for thread in threads for core in os.sched_getaffinity(thread)} == {CORE}
    used_ns = []
    for _ in range(20):
        before = processes.run_time_ns([pid])
        time.sleep(0.005)
        used_ns.append(processes.run_time_ns([pid]) - before)
    assert sorted(used_ns)[len(used_ns) // 2] < 1e6
    assert sum(used_ns) < 0.1 * 20 * 5e6


def test_the_gate_can_prove_a_rank_idle_before_it_sends_its_weights(start, cache):
    trainer = start(caches=[cache])
    trainer.step(samples_of(trainer))
    (pid,) = trainer.pids(DeviceId(NodeId("train-0"), 0))
    quiet_ns = []

    def look():
        before = processes.run_time_ns([pid])
        time.sleep(0.008)
        quiet_ns.append(processes.run_time_ns([pid]) - before)

    for _ in range(5):
        trainer.park()
        gate = threading.Thread(target=look)
        gate.start()
        trainer.publish(None)
        gate.join()
    assert sorted(quiet_ns)[2] < 1e6
