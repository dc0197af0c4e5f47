"""The engines of a whole job: both pools, sync, gate, checkpoint, end."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmux.cluster import PoolKind
from rmux.errors import WorkerError
from rmux.run.driver.engines import Response, Sample, Sampling
from rmux.run.driver.ray_engines import RayEngines
from rmux.run.workers.vllm_engine import ModelFacts

PROMPTS = [[(7 * at + 3 * i) % 64 for i in range(8)] for at in range(2) for _ in range(8)]
SAMPLING = Sampling(max_tokens=32, ignore_eos=True)


@pytest.fixture(scope="module")
def engines(make_config: Callable[..., Any]) -> Iterator[RayEngines]:
    one = RayEngines(make_config())
    try:
        one.prepare()
        assert one.init(PoolKind.ROLLOUT) > 0
        assert one.init(PoolKind.TRAIN) > 0
        yield one
    finally:
        one.close()


def iterate(engines: RayEngines) -> list[Response]:
    engines.wake(PoolKind.ROLLOUT)
    responses = engines.fleet().generate(PROMPTS, sampling=SAMPLING)
    engines.park(PoolKind.ROLLOUT)
    engines.wake(PoolKind.TRAIN)
    digits = [sum(token < 10 for token in response.tokens) for response in responses]
    mean = sum(digits) / len(digits)
    report = engines.trainer().step(
        [
            Sample(response=response, advantage=(count - mean) / 10)
            for response, count in zip(responses, digits, strict=True)
        ]
    )
    engines.park(PoolKind.TRAIN)
    assert report.steps == 2
    assert report.max_logprob_gap < 1e-5
    return responses


def test_iterations_stay_on_policy_through_the_cache_and_the_gate(engines: RayEngines) -> None:
    versions = []
    for _ in range(3):
        versions.append({response.weight_version for response in iterate(engines)})
        report = engines.trainer().publish(engines.fleet())
        assert report.sent_bytes > 1_000_000
    assert versions == [{0}, {1}, {2}]


def test_a_missing_sync_is_told_before_anything_is_sampled(engines: RayEngines) -> None:
    iterate(engines)
    with pytest.raises(WorkerError, match="the sync is missing") as caught:
        engines.wake(PoolKind.ROLLOUT)
    assert caught.value.code == "sync.gate"
    engines.trainer().publish(engines.fleet())
    engines.wake(PoolKind.ROLLOUT)
    engines.park(PoolKind.ROLLOUT)


def test_a_restored_job_samples_the_saved_weights(engines: RayEngines, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    assert engines.save(folder) > 1_000_000
    engines.wake(PoolKind.ROLLOUT)
    seeds = list(range(len(PROMPTS)))
    before = engines.fleet().generate(PROMPTS, sampling=SAMPLING, seeds=seeds)
    engines.park(PoolKind.ROLLOUT)
    iterate(engines)
    engines.trainer().publish(engines.fleet())
    engines.restore(folder)
    engines.wake(PoolKind.ROLLOUT)
    assert engines.fleet().generate(PROMPTS, sampling=SAMPLING, seeds=seeds) == before
    engines.park(PoolKind.ROLLOUT)


def test_engines_of_another_model_than_the_trainers_are_told_apart_at_init(
    engines: RayEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = engines.trainer().model
    assert model == ModelFacts(vocabulary=64, dtype="float32")
    for change, message in (
        ({"vocabulary": 65}, "at r0/0 has a vocabulary of 64 tokens, the trainer one of 65"),
        ({"dtype": "bfloat16"}, "at r0/0 computes in float32, the trainer sends bfloat16"),
    ):
        monkeypatch.setattr(engines.trainer(), "model", dataclasses.replace(model, **change))
        monkeypatch.setattr(RayEngines, "_on_rollout", _without_init(RayEngines._on_rollout))
        with pytest.raises(WorkerError, match=message):
            engines.init(PoolKind.ROLLOUT)
        monkeypatch.undo()


def _without_init(call: Callable[..., Any]) -> Callable[..., Any]:
    """The engines are there already."""

    def on_rollout(self: RayEngines, method: str, *args: Any, **kwargs: Any) -> Any:
        return [0.0] if method == "init" else call(self, method, *args, **kwargs)

    return on_rollout


def test_versions_and_pids_name_what_runs(engines: RayEngines) -> None:
    assert {"vllm", "deepspeed", "torch", "ray"} <= set(engines.versions())
    placement = engines._config.placement
    pids = [engines.pids(device) for device in placement.devices]
    assert all(len(found) == 1 and Path(f"/proc/{found[0]}").exists() for found in pids)


def test_nothing_is_left_after_close(
    engines: RayEngines, left_over: Callable[[str], list[str]]
) -> None:
    tag = engines._config.run_tag
    assert left_over(tag)
    before = {name for name in os.listdir("/dev/shm") if not name.startswith("deepspeed_")}
    engines.close()
    engines.close()
    assert left_over(tag) == []
    assert {name for name in os.listdir("/dev/shm") if name.startswith("psm_")} <= before
