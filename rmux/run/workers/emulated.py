"""Engines that take the time real ones would and do nothing: for rehearsal, scale and chaos.

Workers are threads of their driver, one per device, that sleep for the durations in the spec.
Results are a pure function of the prompts, the seed and the weight version.
"""

from __future__ import annotations

import json
import math
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rmux
from rmux.clock import Clock, SystemClock
from rmux.cluster import DeviceId, PoolKind
from rmux.errors import ConflictError, WorkerError
from rmux.ids import NodeId
from rmux.job import Phase
from rmux.run.driver.engines import (
    SPILL_FOLDER,
    DriverConfig,
    FinishedLength,
    Fleet,
    InFlight,
    MoveReport,
    Progress,
    Response,
    Sample,
    Sampling,
    ShedKind,
    ShedReport,
    SyncReport,
    TrainReport,
)
from rmux.run.workers.ballast import Ballast
from rmux.run.workers.emulated_fleet import LengthStream, read_lengths, speed_of

_PROGRESS_STEPS = 4
_STATE = "emulated.json"


class EmulatedStream:
    """What is submitted together is done together, when its time has passed."""

    def __init__(
        self,
        devices: Sequence[DeviceId],
        *,
        rollout: Callable[[float], int],
        on_progress: Progress | None,
    ) -> None:
        """`rollout` lets a share of a rollout's time pass; returns the weight version."""
        self._devices = list(devices)
        self._run = rollout
        self._on_progress = on_progress
        self._new: dict[int, tuple[tuple[int, ...], DeviceId]] = {}
        self._done: list[tuple[int, Response]] = []
        self._lock = threading.Lock()
        self.num_done = 0

    def __enter__(self) -> EmulatedStream:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._new.clear()

    def submit(self, key: int, prompt: Sequence[int], *, sampling: Sampling, seed: int) -> None:
        with self._lock:
            device = self._devices[len(self._new) % len(self._devices)]
            self._new[key] = (tuple(prompt), device)

    def next(self, timeout_s: float) -> tuple[int, Response] | None:
        if not self._done and self._new:
            self._sample()
        return self._done.pop(0) if self._done else None

    def in_flight(self) -> tuple[InFlight, ...]:
        with self._lock:
            return tuple(
                InFlight(key=key, device=device, prompt_tokens=len(prompt), tokens=0)
                for key, (prompt, device) in self._new.items()
            )

    def leave(self, devices: Sequence[DeviceId], homes: Mapping[int, DeviceId]) -> MoveReport:
        with self._lock:
            staying = [device for device in self._devices if device not in devices]
            moved = [key for key, (_, device) in self._new.items() if device in devices]
            if moved and not staying:
                raise ConflictError("no other worker is awake", code="fleet.leave")
            self._devices = staying
            for at, key in enumerate(moved):
                home = homes.get(key, staying[at % len(staying)])
                self._new[key] = (self._new[key][0], home)
            tokens = sum(len(self._new[key][0]) for key in moved)
        return MoveReport(requests=len(moved), tokens_recomputed=tokens, exact=len(moved))

    def join(self, devices: Sequence[DeviceId]) -> int:
        with self._lock:
            self._devices += [device for device in devices if device not in self._devices]
        return 0

    def _sample(self) -> None:
        steps = _PROGRESS_STEPS if self._on_progress else 1
        count = len(self._new)
        for step in range(1, steps + 1):
            version = self._run(1 / steps)
            if self._on_progress:
                done = count * step // steps
                self._on_progress({"responses_done": done, "responses": count, "tokens": done})
        with self._lock:
            for key, (prompt, _) in self._new.items():
                response = Response(
                    prompt_tokens=prompt,
                    tokens=(version,),
                    logprobs=(0.0,),
                    weight_version=version,
                    finish_reason="stop",
                )
                self._done.append((key, response))
            self._new.clear()
            self.num_done += count


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
        self._sampled_version = 0
        """Of the rollout under way: one step off-policy a sync may come in the middle of it."""
        self._steps = 0
        self._home = config.placement.train_nodes[0]
        self._ballast = Ballast(
            self._spec, seed=self._seed, file=config.run_dir / SPILL_FOLDER / "emulated.state"
        )
        self._closed = threading.Event()
        self._nap = self._closed.wait if nap is None else nap
        self._rollout = config.placement.rollout
        self._max_seqs = config.spec.rollout.max_num_seqs
        self._lengths = read_lengths(self._spec.lengths) if self._spec.lengths else ()
        self._calls = (-1, 0)
        """Weights of the last call of `generate` without seeds, and how many there were."""
        self._awake: list[DeviceId] = []
        self._stream: EmulatedStream | LengthStream | None = None
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
        if kind is PoolKind.TRAIN:
            self._ballast.fill(steps=0)
        return self._work(kind, self._spec.init_s, Phase.INIT)

    def wake(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        if kind is PoolKind.ROLLOUT:
            chosen = self._rollout if devices is None else devices
            if not self._awake:
                self._sampled_version = self._version
            self._awake += [device for device in chosen if device not in self._awake]
        elif self._ballast.is_spilled:
            begun_s = self._clock.now_s()
            self._ballast.use()
            self._work(kind, self._spec.init_s, None)
            return self._clock.now_s() - begun_s
        else:
            self._ballast.use()
        return self._work(kind, self._spec.switch_s / 2, None, devices)

    def park(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        if kind is PoolKind.ROLLOUT:
            chosen = self._rollout if devices is None else devices
            self._awake = [device for device in self._awake if device not in chosen]
        else:
            self._ballast.rest()
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
        own = self._own_seeds(len(prompts)) if seeds is None else seeds
        with self.stream(on_progress=on_progress) as stream:
            for key, prompt in enumerate(prompts):
                stream.submit(key, prompt, sampling=sampling, seed=own[key])
            found = dict(taken for _ in prompts if (taken := stream.next(math.inf)) is not None)
        return [found[key] for key in range(len(prompts))]

    def _own_seeds(self, count: int) -> list[int]:
        version, calls = self._calls
        calls = calls + 1 if version == self._version else 0
        self._calls = (self._version, calls)
        draw = random.Random(f"{self._seed}/{self._version}/{calls}")
        return [draw.getrandbits(63) for _ in range(count)]

    def stream(self, *, on_progress: Progress | None = None) -> EmulatedStream | LengthStream:
        devices = self._awake or self._rollout
        if not self._lengths:
            self._stream = EmulatedStream(
                devices, rollout=self._rollout_part, on_progress=on_progress
            )
            return self._stream
        self._stream = LengthStream(
            devices,
            lengths=self._lengths,
            speed=speed_of(self._spec, factor=self._jitter(Phase.ROLLOUT)),
            max_seqs=self._max_seqs,
            version=lambda: self._sampled_version if self._awake else self._version,
            now_s=self._clock.now_s,
            on_progress=on_progress,
        )
        return self._stream

    def in_flight(self) -> tuple[InFlight, ...]:
        return self._stream.in_flight() if self._stream is not None else ()

    def finished_lengths(self) -> tuple[FinishedLength, ...]:
        if isinstance(self._stream, LengthStream):
            return self._stream.finished_lengths()
        count = self._stream.num_done if self._stream is not None else 0
        return (FinishedLength(tokens=1, at_limit=False),) * count

    def leave(
        self, devices: Sequence[DeviceId], *, homes: Mapping[int, DeviceId] | None = None
    ) -> MoveReport:
        return self._stream.leave(devices, homes or {}) if self._stream else MoveReport()

    def join(self, devices: Sequence[DeviceId]) -> int:
        return 0 if self._stream is None else self._stream.join(devices)

    def _rollout_part(self, share: float) -> int:
        """A share of the rollout's time passes; the weights it was sampled with."""
        self._work(PoolKind.ROLLOUT, self._spec.rollout_s * share, Phase.ROLLOUT)
        return self._sampled_version if self._awake else self._version

    def step(self, samples: Sequence[Sample]) -> TrainReport:
        self._work(PoolKind.TRAIN, self._spec.train_s, Phase.TRAIN)
        self._steps += 1
        self._ballast.step(self._steps)
        return TrainReport(steps=1, max_logprob_gap=0.0)

    def publish(self, fleet: Fleet) -> SyncReport:
        seconds = self._work(PoolKind.TRAIN, self._spec.sync_s, Phase.SYNC)
        self._version += 1
        checksum = self._ballast.checksum() or str(self._version)
        return SyncReport(version=self._version, sent_bytes=0, seconds=seconds, checksum=checksum)

    def save(self, folder: Path) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"version": self._version, "steps": self._steps}
        return (folder / _STATE).write_text(json.dumps(state))

    def restore(self, folder: Path) -> None:
        state = json.loads((folder / _STATE).read_text())
        self._version, self._steps = int(state["version"]), int(state["steps"])
        self._ballast.fill(steps=self._steps)

    def shed(self, what: ShedKind, *, node: NodeId) -> ShedReport | None:
        """A job's memory is its driver's, which counts at its home."""
        if node != self._home:
            return ShedReport(what=what, freed_bytes=0)
        return self._ballast.shed(what)

    def spilled(self) -> tuple[NodeId, ...]:
        return (self._home,) if self._ballast.is_spilled else ()

    def versions(self) -> dict[str, str]:
        return {"emulated": rmux.__version__}

    def close(self) -> None:
        """Ends every sleep at once."""
        self._closed.set()
        if isinstance(self._stream, LengthStream):
            self._stream.stop()
        for workers in self._workers.values():
            workers.shutdown(wait=True, cancel_futures=True)

    def _jitter(self, phase: Phase) -> float:
        if not self._spec.jitter:
            return 1.0
        draw = random.Random(f"{self._seed}/{self._version}/{phase}")
        return draw.uniform(1 - self._spec.jitter, 1 + self._spec.jitter)

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
        if phase is not None:
            duration_s *= self._jitter(phase)
        begun_s = self._clock.now_s()
        workers = self._workers[kind]
        width = self._width[kind] if devices is None else len(devices)
        naps = [workers.submit(self._nap, duration_s) for _ in range(width)]
        if any(nap.result() for nap in naps):
            raise WorkerError("the emulated engines were closed while they worked")
        return self._clock.now_s() - begun_s
