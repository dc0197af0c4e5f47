"""The phases of one attempt, in the main thread: grant, wake, the user's function, park."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from rmux.clock import Clock, SystemClock
from rmux.errors import UserError
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.driver.engines import DriverConfig, Engines, SyncReport
from rmux.run.driver.holds import POOLS, Callback, Holds
from rmux.run.driver.link import Link

_FOLLOWS: dict[Phase | None, tuple[Phase, ...]] = {
    None: (Phase.ROLLOUT, Phase.INIT),
    Phase.INIT: (Phase.ROLLOUT, Phase.INIT),
    Phase.ROLLOUT: (Phase.TRAIN,),
    Phase.TRAIN: (Phase.SYNC, Phase.ROLLOUT),
    Phase.SYNC: (Phase.ROLLOUT,),
}
_PROGRESS_EVERY_S = 0.5


class Saver(Protocol):
    def __call__(self, *, finished: int, weight_version: int) -> int | None:
        """Make the first `finished` iterations permanent; bytes written, None if not due."""


class Cancelled(BaseException):
    """The job ends at this iteration boundary; no Exception, so that scripts let it pass."""


class Session:
    """Iterations count from 0; `finished` of them are over. Not for use from several threads,
    `progress` apart."""

    def __init__(
        self,
        config: DriverConfig,
        *,
        link: Link,
        engines: Engines,
        save: Saver,
        finished: int = 0,
        owns_process: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """`owns_process` where the script's own engines run in this very process."""
        self.config, self.link, self.engines = config, link, engines
        self.finished = finished
        self._save = save
        self._clock = clock or SystemClock()
        self._holds = Holds(
            config, link=link, engines=engines, clock=self._clock, owns_process=owns_process
        )
        self._last: Phase | None = None
        self._current: Phase | None = None
        self._iteration_from_s = 0.0
        self._metrics: dict[str, float] = {}
        self._version: int | None = None
        """Weights that this iteration's sync sent, where it says so."""
        self._progress_s = float("-inf")
        self._progress_lock = threading.Lock()

    def run(
        self,
        phase: Phase,
        function: Callback,
        *,
        park: Callback | None = None,
        wake: Callback | None = None,
    ) -> Any:
        """Run the user's function as this phase. UserError when another phase is due."""
        self._check_order(phase)
        if phase is Phase.ROLLOUT and self._last is Phase.TRAIN:
            self._end_iteration()
        if phase in POOLS:
            result = self._run_held(phase, function, park=park, wake=wake)
        else:
            result = self._run_free(phase, function)
        self._last = phase
        if phase is Phase.SYNC:
            self._end_iteration()
        return result

    def finish(self) -> None:
        """The script is over: an iteration that lacks only its sync counts as finished."""
        if self._last is Phase.TRAIN:
            self._end_iteration()

    def progress(self, numbers: Mapping[str, Any]) -> None:
        """Tell how far the running phase is; at most twice a second is passed on."""
        now_s = self._clock.now_s()
        with self._progress_lock:
            if now_s - self._progress_s < _PROGRESS_EVERY_S:
                return
            self._progress_s = now_s
        self.link.emit(
            EventType.PROGRESS,
            iteration=self.finished,
            phase=self._current,
            data=numbers_of(numbers),
        )

    def _check_order(self, phase: Phase) -> None:
        if self._current is not None:
            raise UserError(f"phase {phase} was called inside phase {self._current}")
        expected = _FOLLOWS[self._last]
        if phase not in expected:
            after = "first" if self._last is None else f"after {self._last}"
            raise UserError(
                f"phase {phase} was called where {expected[0]} is due {after}",
                hint="each iteration is rollout, train, then sync where weights are sent",
            )

    def _run_held(
        self, phase: Phase, function: Callback, *, park: Callback | None, wake: Callback | None
    ) -> Any:
        at_boundary = phase is Phase.ROLLOUT
        hold = self._holds.acquire(
            phase,
            iteration=self.finished,
            wake=wake,
            boundary=self._pass_boundary if at_boundary else None,
        )
        if at_boundary:
            self._iteration_from_s = hold.wanted_s
        self._current = phase
        try:
            result = self._holds.call(hold, function)
        except Exception as error:
            self._current = None
            self._holds.release(hold, park=park, found={"error": type(error).__name__})
            raise
        self._current = None
        self._holds.release(hold, park=park, found=self._collect(result))
        return result

    def _pass_boundary(self) -> bool:
        """Where an iteration would begin: stop here if cancelled, wait here while paused; whether
        it was."""
        paused = False
        while (desired := self.link.desired) != "run":
            self.link.unwant()
            if desired != "pause":
                raise Cancelled
            self.link.report_status("paused", iteration=self.finished)
            self.link.await_desired(
                lambda order: order != "pause", timeout_s=self.config.heartbeat_s
            )
            paused = True
        return paused

    def _run_free(self, phase: Phase, function: Callback) -> Any:
        """A phase that holds no device: sync, and what a script does before its first rollout."""
        begun_s = self._clock.now_s()
        self.link.emit(EventType.PHASE_START, iteration=self.finished, phase=phase, at_s=begun_s)
        self._current = phase
        try:
            result = function()
        finally:
            self._current = None
        metrics = self._collect(result)
        if phase is Phase.SYNC and "version" in metrics:
            self._version = int(metrics["version"])
        ended_s = self._clock.now_s()
        self.link.emit(
            EventType.PHASE_END,
            iteration=self.finished,
            phase=phase,
            at_s=ended_s,
            data={**metrics, **_checksum(result), "run_s": ended_s - begun_s, "overhead_s": 0.0},
        )
        return result

    def _collect(self, result: Any) -> dict[str, float]:
        metrics = numbers_of(result)
        self._metrics.update(metrics)
        return metrics

    def _end_iteration(self) -> None:
        iteration, metrics = self.finished, self._metrics
        begun_s = self._clock.now_s()
        version = iteration + 1 if self._version is None else self._version
        size_bytes = self._save(finished=iteration + 1, weight_version=version)
        ended_s = self._clock.now_s()
        if size_bytes is not None:
            self.link.emit(
                EventType.CHECKPOINT,
                iteration=iteration,
                data={"seconds": ended_s - begun_s, "bytes": size_bytes},
            )
        self.finished, self._metrics, self._version = iteration + 1, {}, None
        self._last = Phase.SYNC
        self.link.emit(
            EventType.ITERATION_END,
            iteration=iteration,
            data={
                **metrics,
                "finished": self.finished,
                "weight_version": version,
                "iteration_s": ended_s - self._iteration_from_s,
            },
        )
        self.link.report_status("running", iteration=self.finished)


def _checksum(result: Any) -> dict[str, str]:
    """The checksum of synced weights: two runs with equal ones had the very same weights."""
    return {"checksum": result.checksum} if isinstance(result, SyncReport) else {}


def numbers_of(result: Any) -> dict[str, float]:
    """The numbers in what a phase returned: a mapping, or a report with or without `metrics`."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = {
            **{f.name: getattr(result, f.name) for f in dataclasses.fields(result)},
            **(getattr(result, "metrics", None) or {}),
        }
    if not isinstance(result, Mapping):
        return {}
    return {
        str(key): value
        for key, value in result.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
