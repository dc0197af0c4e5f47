"""Engines that take the time real ones would and do nothing: for rehearsal, scale and chaos.

Workers are threads of their driver, one per device, that sleep for the durations in the spec.
Results are a pure function of the prompts, the seed and the weight version.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rmux
from rmux.clock import Clock, SystemClock
from rmux.cluster import DeviceId, PoolKind
from rmux.errors import WorkerError
from rmux.job import Phase
from rmux.run.driver.engines import (
    DriverConfig,
    Fleet,
    Progress,
    Response,
    Sample,
    Sampling,
    SyncReport,
    TrainReport,
)

_PROGRESS_STEPS = 4
_STATE = "emulated.json"


class EmulatedEngines:
    """Implements Engines, Fleet and Trainer at once: there is nothing to tell apart."""

    def __init__(
        self,
        config: DriverConfig,
        *,
        clock: Clock | None = None,
        nap: Callable[[float], bool] | None = None,
    ) -> None:
        """`nap` sleeps for seconds and tells whether it was cut short."""
        self._spec = config.spec.emulated
        self._seed = config.spec.seed
        self._clock = clock or SystemClock()
        self._version = 0
        self._steps = 0
        self._closed = threading.Event()
        self._nap = self._closed.wait if nap is None else nap
        self._width = {
            PoolKind.ROLLOUT: len(config.placement.rollout),
            PoolKind.TRAIN: len(config.placement.train),
        }
        self._workers = {
            kind: ThreadPoolExecutor(max(1, width), thread_name_prefix=f"emulated-{kind}")
            for kind, width in self._width.items()
        }

    def prepare(self) -> None:
        pass

    def init(self, kind: PoolKind) -> float:
        return self._work(kind, self._spec.init_s, Phase.INIT)

    def wake(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        return self._work(kind, self._spec.switch_s / 2, None, devices)

    def park(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        return self._work(kind, self._spec.switch_s / 2, None, devices)

    def pids(self, device: DeviceId) -> tuple[int, ...]:
        return (os.getpid(),)

    def fleet(self) -> Fleet:
        return self

    def trainer(self) -> EmulatedEngines:
        return self

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        seeds: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[Response]:
        steps = _PROGRESS_STEPS if on_progress else 1
        for step in range(1, steps + 1):
            self._work(PoolKind.ROLLOUT, self._spec.rollout_s / steps, Phase.ROLLOUT)
            if on_progress:
                done = len(prompts) * step // steps
                on_progress({"responses_done": done, "responses": len(prompts), "tokens": done})
        return [
            Response(
                prompt_tokens=tuple(prompt),
                tokens=(self._version,),
                logprobs=(0.0,),
                weight_version=self._version,
                finish_reason="stop",
            )
            for prompt in prompts
        ]

    def step(self, samples: Sequence[Sample]) -> TrainReport:
        self._work(PoolKind.TRAIN, self._spec.train_s, Phase.TRAIN)
        self._steps += 1
        return TrainReport(steps=1, max_logprob_gap=0.0)

    def publish(self, fleet: Fleet) -> SyncReport:
        seconds = self._work(PoolKind.TRAIN, self._spec.sync_s, Phase.SYNC)
        self._version += 1
        checksum = str(self._version)
        return SyncReport(version=self._version, sent_bytes=0, seconds=seconds, checksum=checksum)

    def save(self, folder: Path) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"version": self._version, "steps": self._steps}
        return (folder / _STATE).write_text(json.dumps(state))

    def restore(self, folder: Path) -> None:
        state = json.loads((folder / _STATE).read_text())
        self._version, self._steps = int(state["version"]), int(state["steps"])

    def versions(self) -> dict[str, str]:
        return {"emulated": rmux.__version__}

    def close(self) -> None:
        """Ends every sleep at once."""
        self._closed.set()
        for workers in self._workers.values():
            workers.shutdown(wait=True, cancel_futures=True)

    def _work(
        self,
        kind: PoolKind,
        duration_s: float,
        phase: Phase | None,
        devices: Sequence[DeviceId] | None = None,
    ) -> float:
        """Keep every worker of the pool, or those of these devices, busy for the duration; the
        seconds it took."""
        if duration_s <= 0:
            return 0.0
        if phase is not None and self._spec.jitter:
            draw = random.Random(f"{self._seed}/{self._version}/{phase}")
            duration_s *= draw.uniform(1 - self._spec.jitter, 1 + self._spec.jitter)
        begun_s = self._clock.now_s()
        workers = self._workers[kind]
        width = self._width[kind] if devices is None else len(devices)
        naps = [workers.submit(self._nap, duration_s) for _ in range(width)]
        if any(nap.result() for nap in naps):
            raise WorkerError("the emulated engines were closed while they worked")
        return self._clock.now_s() - begun_s
