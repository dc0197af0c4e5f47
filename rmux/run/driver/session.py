"""The phases of one attempt: grant, wake, the user's function in the thread that calls, park."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from rmux.clock import Clock, SystemClock
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.driver.engines import DriverConfig, Engines, SyncReport
from rmux.run.driver.holds import POOLS, Callback, Holds
from rmux.run.driver.link import Link
from rmux.run.driver.order import Order

_PROGRESS_EVERY_S = 0.5


class Saver(Protocol):
    def __call__(self, *, finished: int, weight_version: int) -> int | None:
        """Make the first `finished` iterations permanent; bytes written, None if not due."""


class Cancelled(BaseException):
    """The job ends at this iteration boundary; no Exception, so that scripts let it pass."""


class Session:
    """Iterations count from 0; `finished` of them are over. One step off-policy a rollout may be
    run from a second thread; see `Order`."""

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
        interrupt: Callback = lambda: None,
    ) -> None:
        """`interrupt` raises something in the main thread, whatever it waits for. `owns_process`
        where the script's own engines run in this very process."""
        self.config, self.link, self.engines = config, link, engines
        self._order = Order(finished=finished, max_staleness=config.spec.max_staleness)
        self._save = save
        self.interrupt = interrupt
        self._clock = clock or SystemClock()
        self._holds = Holds(
            config,
            link=link,
            engines=engines,
            clock=self._clock,
            owns_process=owns_process,
            failed=self._fail,
        )
        self.failure: Exception | None = None
        """What went wrong beside the user's function, and interrupted the main thread."""
        self._began_s: dict[int, float] = {}
        """Since when each iteration's rollout could have run."""
        self._ended_s = float("-inf")
        self._metrics: dict[int, dict[str, float]] = {}
        """By iteration."""
        self._version: int | None = None
        """Weights that this iteration's sync sent, where it says so."""
        self._closed = False
        self._progress_s = float("-inf")
        self._progress_lock = threading.Lock()

    @property
    def finished(self) -> int:
        return self._order.finished

    @property
    def may_spill(self) -> bool:
        """Whether nothing reads the train state before the next train phase."""
        return self._order.is_trained_out

    def run(
        self,
        phase: Phase,
        function: Callback,
        *,
        park: Callback | None = None,
        wake: Callback | None = None,
    ) -> Any:
        """Run the user's function as this phase. UserError when another phase is due."""
        if phase is Phase.ROLLOUT and self._order.lacks_only_sync:
            self._end_iteration()
        iteration = self._order.begin(phase)
        try:
            if phase in POOLS:
                result = self._run_held(phase, iteration, function, park=park, wake=wake)
            else:
                result = self._run_free(phase, iteration, function)
        except BaseException:
            self._order.give_up(phase)
            raise
        self._order.end(phase)
        if phase is Phase.SYNC:
            self._end_iteration()
        return result

    def finish(self) -> None:
        """The script is over: an iteration that lacks only its sync counts as finished."""
        if self._order.lacks_only_sync:
            self._end_iteration()

    def close(self) -> None:
        """No further rollout begins: one that waits in another thread is called off."""
        self._closed = True

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.interrupt()

    def progress(self, numbers: Mapping[str, Any]) -> None:
        """Tell how far the running phase is; at most twice a second is passed on."""
        now_s = self._clock.now_s()
        with self._progress_lock:
            if now_s - self._progress_s < _PROGRESS_EVERY_S:
                return
            self._progress_s = now_s
        phase, iteration = self._order.current
        self.link.emit(
            EventType.PROGRESS,
            iteration=iteration,
            phase=phase,
            data=numbers_of(numbers),
        )

    def _run_held(
        self,
        phase: Phase,
        iteration: int,
        function: Callback,
        *,
        park: Callback | None,
        wake: Callback | None,
    ) -> Any:
        at_boundary = phase is Phase.ROLLOUT
        if at_boundary and iteration > self.finished:
            self._await_train(iteration)
        hold = self._holds.acquire(
            phase,
            iteration=iteration,
            wake=wake,
            boundary=self._pass_boundary if at_boundary else None,
        )
        if at_boundary:
            self._began_s[iteration] = hold.wanted_s
        try:
            result = self._holds.call(hold, function)
        except Exception as error:
            self._holds.release(hold, park=park, found={"error": type(error).__name__})
            raise
        self._holds.release(hold, park=park, found=self._collect(result, iteration))
        return result

    def _await_train(self, iteration: int) -> None:
        """One step off-policy: the turn of a train comes before that of the rollout after it, so it
        is wanted before, or the job would lose it."""
        while not self.link.await_wanted(
            Phase.TRAIN, iteration=iteration - 1, timeout_s=self.config.heartbeat_s
        ):
            if self._closed:
                raise Cancelled

    def _pass_boundary(self) -> bool:
        """Where an iteration would begin: stop here if cancelled, wait here while paused; whether
        it was. What was rolled out before is still trained on."""
        paused = False
        while (desired := self.link.desired) != "run" or self._closed:
            self.link.unwant(Phase.ROLLOUT)
            if desired != "pause" or self._closed:
                raise Cancelled
            if self._order.is_at_rest:
                self.link.report_status("paused", iteration=self.finished)
            self.link.await_desired(
                lambda order: order != "pause", timeout_s=self.config.heartbeat_s
            )
            paused = True
        return paused

    def _run_free(self, phase: Phase, iteration: int, function: Callback) -> Any:
        """A phase that holds no device: sync, and what a script does before its first rollout."""
        begun_s = self._clock.now_s()
        self.link.emit(EventType.PHASE_START, iteration=iteration, phase=phase, at_s=begun_s)
        result = function()
        metrics = self._collect(result, iteration)
        if phase is Phase.SYNC and "version" in metrics:
            self._version = int(metrics["version"])
        ended_s = self._clock.now_s()
        self.link.emit(
            EventType.PHASE_END,
            iteration=iteration,
            phase=phase,
            at_s=ended_s,
            data={**metrics, **_checksum(result), "run_s": ended_s - begun_s, "overhead_s": 0.0},
        )
        return result

    def _collect(self, result: Any, iteration: int) -> dict[str, float]:
        metrics = numbers_of(result)
        self._metrics.setdefault(iteration, {}).update(metrics)
        return metrics

    def _end_iteration(self) -> None:
        iteration = self.finished
        metrics = self._metrics.pop(iteration, {})
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
        # One step off-policy its rollout was wanted while the iteration before was under way.
        begun_s, self._ended_s = max(self._began_s.pop(iteration, 0.0), self._ended_s), ended_s
        self._version = None
        self._order.end_iteration()
        self.link.emit(
            EventType.ITERATION_END,
            iteration=iteration,
            data={
                **metrics,
                "finished": self.finished,
                "weight_version": version,
                "iteration_s": ended_s - begun_s,
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
