"""Real engines give host memory up and take it back: caches, and a train state spilled to disk."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from rmux.cluster import PoolKind
from rmux.ids import NodeId
from rmux.run import host_memory
from rmux.run.driver.engines import Response, Sample, Sampling, ShedKind
from rmux.run.driver.ray_engines import RayEngines
from rmux.run.workers.cache import CacheFiles

pytestmark = [pytest.mark.engines, pytest.mark.slow]

MIB = 2**20
KV_BYTES = 96 * MIB
ROLL, TRAIN = NodeId("r0"), NodeId("t0")
GREEDY = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [[1, 2, 3], [7, 8, 9, 10]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Of 9 M parameters: its state takes memory that can be told from the rest of a process."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=5,
    )
    folder = tmp_path_factory.mktemp("larger")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engines(make_config, model):
    config = make_config(kv_cache_bytes=KV_BYTES)
    config = dataclasses.replace(
        config, spec=dataclasses.replace(config.spec, model_path=str(model))
    )
    engines = RayEngines(config)
    try:
        engines.prepare()
        for kind in (PoolKind.TRAIN, PoolKind.ROLLOUT):
            engines.init(kind)
        engines.config = config
        yield engines
    finally:
        engines.close()


def train_and_send(engines):
    """One step on samples that the trainer scores itself, as an exact engine would have."""
    trainer = engines.trainer()
    engines.wake(PoolKind.TRAIN)
    samples = []
    for index, tokens in enumerate([(3, 4, 5, 6), (9, 8, 7)] * 4):
        scored = trainer._on_first("score", [(1, 2, *tokens)], timeout_s=60)[0]
        response = Response(
            prompt_tokens=(1, 2),
            tokens=tokens,
            logprobs=tuple(scored[1:]),
            weight_version=trainer.weights_version,
            finish_reason="length",
        )
        samples.append(Sample(response=response, advantage=(-1.0) ** index))
    trainer.step(samples)
    engines.park(PoolKind.TRAIN)
    return trainer.publish(engines.fleet())


def held(engines, kind):
    placement = engines.config.placement
    (device,) = placement.rollout if kind is PoolKind.ROLLOUT else placement.train
    return host_memory.pss_bytes(engines.pids(device)[0])


def saved(engines, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    engines.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def greedy(engines):
    engines.wake(PoolKind.ROLLOUT)
    found = engines.fleet().generate(PROMPTS, sampling=GREEDY)
    engines.park(PoolKind.ROLLOUT)
    return [(one.tokens, one.logprobs) for one in found]


def test_a_spilled_train_state_comes_back_bit_by_bit_and_its_memory_is_free_meanwhile(
    engines, tmp_path
):
    train_and_send(engines)
    assert engines.spilled() == ()
    engines.wake(PoolKind.TRAIN)
    assert engines.shed(ShedKind.SPILL, node=TRAIN) is None, "it is in use"
    engines.park(PoolKind.TRAIN)
    before, full = saved(engines, tmp_path / "before"), held(engines, PoolKind.TRAIN)

    report = engines.shed(ShedKind.SPILL, node=TRAIN)
    assert report.freed_bytes > 100 * MIB, "weights twice and two moments of 9 M parameters"
    assert engines.spilled() == (TRAIN,)
    low = held(engines, PoolKind.TRAIN)
    assert full - low > 0.9 * report.freed_bytes
    (file,) = (engines.config.run_dir / "spill").iterdir()
    assert (file.stat().st_size, file.stat().st_mode & 0o777) == (report.freed_bytes, 0o600)
    assert engines.shed(ShedKind.SPILL, node=TRAIN).freed_bytes == 0, "once is enough"

    engines.wake(PoolKind.TRAIN)
    assert engines.spilled() == ()
    assert held(engines, PoolKind.TRAIN) - low > 0.9 * report.freed_bytes
    engines.park(PoolKind.TRAIN)
    assert saved(engines, tmp_path / "after") == before
    assert not file.exists()

    # A checkpoint and a sync need it, too, without a wake.
    sent = engines.trainer().publish(engines.fleet())
    engines.shed(ShedKind.SPILL, node=TRAIN)
    assert engines.trainer().publish(engines.fleet()).checksum == sent.checksum
    engines.shed(ShedKind.SPILL, node=TRAIN)
    assert saved(engines, tmp_path / "spilled") == before


def test_a_disk_that_refuses_costs_nothing(engines, tmp_path):
    before = saved(engines, tmp_path / "before")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match="file"):
        engines.trainer().spill(tmp_path / "file", node=TRAIN)
    assert engines.spilled() == ()
    assert saved(engines, tmp_path / "after") == before


def test_caches_of_a_parked_worker_go_and_the_next_wake_samples_the_same(engines):
    train_and_send(engines)
    train_and_send(engines)
    before, full = greedy(engines), held(engines, PoolKind.ROLLOUT)
    files = CacheFiles.of(engines.config.run_tag, ROLL)
    assert files.slot(0).exists()
    assert files.slot(1).exists()

    report = engines.shed(ShedKind.CACHES, node=ROLL)
    older = sum(path.exists() for path in (files.slot(0), files.slot(1)))
    assert older == 1, "the version before the current one is gone"
    assert report.freed_bytes > 0.9 * KV_BYTES + 30 * MIB
    assert full - held(engines, PoolKind.ROLLOUT) > 0.5 * KV_BYTES
    assert engines.shed(ShedKind.CACHES, node=ROLL).freed_bytes == 0

    assert greedy(engines) == before
    engines.wake(PoolKind.ROLLOUT)
    assert engines.shed(ShedKind.CACHES, node=ROLL).freed_bytes == 0, "it is awake"
    engines.park(PoolKind.ROLLOUT)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user to try")
def test_nobody_else_opens_what_the_engines_keep(engines):
    train_and_send(engines)
    engines.shed(ShedKind.SPILL, node=TRAIN)
    tag = engines.config.run_tag
    segments = [path for path in Path("/dev/shm").iterdir() if tag in path.name]
    paths = [*segments, *engines.config.run_dir.rglob("*")]
    assert any(path.name.endswith(".state") for path in paths)
    opened = []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            for path in paths:
                try:
                    os.close(os.open(path, os.O_RDONLY))
                    opened.append(str(path))
                except OSError:
                    pass
            os.write(writer, "\n".join(opened).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == ""
    os.waitpid(child, 0)
