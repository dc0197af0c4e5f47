"""A rollout worker: vLLM's synchronous engine inside the actor's own process.

One process instead of three, no spinning, and stopping is not stepping. The actor is threaded; all
of its engine lives on one thread (see `step_loop`), so calls return at once or wait for that one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmux.errors import ConflictError
from rmux.run.host_memory import trim_heap
from rmux.run.workers import affinity, cache
from rmux.run.workers.step_loop import Delta, StepLoop
from rmux.run.workers.vllm_engine import (
    Admission,
    EngineOptions,
    ModelFacts,
    Request,
    VllmEngine,
    configure,
)

_ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Affinity is ours: vLLM's own binding would move threads to cores of its choice.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeReport:
    seconds: float
    version: int
    reloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What stopping requests left."""

    cursor: int
    deltas: tuple[Delta, ...]
    """Every flush after the cursor that was given, as `poll` returns it."""
    states: Mapping[str, tuple[int, bytes]]
    """Request id to the tokens of its part and the state of its random numbers after them."""


class RolloutWorker:
    """Ray actor of one device. Its process runs on the device's cores only."""

    engine_class = VllmEngine

    def __init__(self, *, device: str, cores: Sequence[int], environ: Mapping[str, str]) -> None:
        self._device = device
        self._cores = tuple(cores)
        os.environ.update({**_ENVIRON, **environ, "OMP_NUM_THREADS": str(len(cores) or 1)})
        affinity.pin_threads(self._cores)
        self._config: Any = None
        self._options: EngineOptions | None = None
        self._loop: StepLoop | None = None
        self._engine: VllmEngine | None = None
        self._is_awake = False
        """From the beginning of a wake to the end of the park: caches are not dropped then."""

    def pid(self) -> int:
        return os.getpid()

    def prepare(self, options: EngineOptions) -> float:
        """The device-free part: imports and configuration, at low priority. Returns seconds."""
        begun_s = time.monotonic()
        self._options = options
        self._config = affinity.run_niced(lambda: configure(options))
        affinity.pin_threads(self._cores)
        return time.monotonic() - begun_s

    def init(self) -> float:
        """Load the model and allocate the KV cache; leaves it parked. Returns seconds."""
        begun_s = time.monotonic()
        if self._config is None or self._options is None:
            raise ConflictError(f"the engine of {self._device} was not prepared")
        config, options = self._config, self._options
        loop = StepLoop(name="engine")

        def make() -> VllmEngine:
            self._engine = self.engine_class(config, options=options)
            return self._engine

        loop.own(make)
        self._loop = loop
        affinity.pin_threads(self._cores)
        return time.monotonic() - begun_s

    def wake(self, files: cache.CacheFiles | None) -> WakeReport:
        """Take the newest weights of the host cache if the engine has others, and start to step.

        WorkerError when the cached weights do not cover the model or a cache of the engine stays.
        """
        begun_s = time.monotonic()
        loop, engine = self._owned()
        self._is_awake = True
        reloaded = loop.call(lambda: engine.refresh(files))
        affinity.pin_threads(self._cores)
        loop.set_stepping(stepping=True)
        return WakeReport(
            seconds=time.monotonic() - begun_s, version=engine.version, reloaded=reloaded
        )

    def park(self) -> int:
        """Stop stepping, drop what is in flight; returns how many requests that were."""
        loop, engine = self._owned()
        loop.set_stepping(stepping=False)
        dropped = loop.call(engine.abort_all)
        self._is_awake = False
        return dropped

    def park_discarded(self, files: cache.CacheFiles) -> int:
        """`park`, then give the memory of the weights back: the next wake loads them from the host
        cache. Bytes. ConflictError when the cache holds none."""
        loop, engine = self._owned()
        self.park()
        freed_bytes = loop.call(lambda: engine.discard(files))
        trim_heap()
        return freed_bytes

    def drop_caches(self) -> int:
        """Give host memory back that the next wake makes anew; bytes, 0 while it is awake."""
        if self._loop is None or self._engine is None:
            return 0
        engine = self._engine
        freed_bytes = self._loop.call(lambda: 0 if self._is_awake else engine.drop_caches())
        trim_heap()
        return freed_bytes

    def submit(self, requests: Sequence[Request]) -> Admission:
        """Enqueue the whole batch before the next step.

        UserError when a request does not fit the engine, ConflictError while it is parked; then
        none is enqueued.
        """
        loop, engine = self._owned()

        def command() -> Admission:
            if not loop.stepping:
                raise ConflictError(f"the engine of {self._device} is parked")
            return engine.add(requests)

        return loop.call(command)

    def stop(self, ids: Sequence[str], cursor: int) -> Stopped:
        """Drop requests and hand over everything sampled since `cursor`, of all requests.

        A request that is not in the answer's `states` may have ended before: its last tokens are
        then among the deltas.
        """
        loop, engine = self._owned()

        def command() -> dict[str, tuple[int, bytes]]:
            deltas, states = engine.stop(ids)
            loop.add(deltas)
            loop.flush()
            return states

        states = loop.call(command)
        cursor, deltas = loop.poll(cursor, timeout_s=0.0)
        return Stopped(cursor=cursor, deltas=deltas, states=states)

    def queued(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Those of the requests that wait for their turn: for room in the batch or the KV cache."""
        loop, engine = self._owned()
        return loop.call(lambda: engine.queued(ids))

    def abort(self, ids: Sequence[str]) -> None:
        """Drop requests; their tokens so far are flushed first."""
        loop, engine = self._owned()

        def command() -> None:
            loop.flush()
            engine.abort(ids)

        loop.call(command)

    def poll(self, cursor: int, timeout_s: float) -> tuple[int, tuple[Delta, ...]]:
        """New tokens since `cursor`; see StepLoop.poll."""
        loop, _ = self._owned()
        return loop.poll(cursor, timeout_s=timeout_s)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token but the first, per sequence, at temperature 1."""
        loop, engine = self._owned()
        return loop.call(lambda: engine.score(sequences))

    def version(self) -> int:
        return self._owned()[1].version

    def model(self) -> ModelFacts:
        return self._owned()[1].model

    def versions(self) -> dict[str, str]:
        """Name to version of what computes here; after `prepare`."""
        import torch
        import vllm

        return {"vllm": vllm.__version__, "torch": torch.__version__}

    def _owned(self) -> tuple[StepLoop, VllmEngine]:
        if self._loop is None or self._engine is None:
            raise ConflictError(f"the engine of {self._device} is not initialised")
        return self._loop, self._engine
