"""Phases on devices: wait for the grants, wake, and after the function park and give back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rmux.clock import Clock
from rmux.cluster import DeviceId, PoolKind
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.driver.engines import DriverConfig, Engines
from rmux.run.driver.link import Link
from rmux.run.messages import Grant

POOLS = {Phase.ROLLOUT: PoolKind.ROLLOUT, Phase.TRAIN: PoolKind.TRAIN}
_SENT_WITHIN_S = 0.05
_WITHDRAWN_WITHIN_S = 0.5

Callback = Callable[[], Any]


@dataclasses.dataclass(slots=True, kw_only=True)
class Hold:
    """The devices of a running phase and rmux's own time on them so far, seconds."""

    phase: Phase
    iteration: int
    grants: tuple[Grant, ...]
    wanted_s: float
    """Since when the phase could have run."""
    overhead_s: float
    woken_s: float
    begun_s: float = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        newest = max(self.grants, key=lambda grant: grant.order)
        devices = [grant.device for grant in self.grants]
        return {"devices": devices, "epoch": newest.epoch, "seq": newest.seq}


class Holds:
    """One phase per pool at a time; each may be in a thread of its own."""

    def __init__(
        self,
        config: DriverConfig,
        *,
        link: Link,
        engines: Engines,
        clock: Clock,
        owns_process: bool,
    ) -> None:
        self._config, self._link, self._engines = config, link, engines
        self._clock = clock
        self._owns_process = owns_process

    def acquire(
        self,
        phase: Phase,
        *,
        iteration: int,
        wake: Callback | None,
        boundary: Callable[[], bool] | None = None,
    ) -> Hold:
        """Wait for every device of the phase and wake on them.

        `boundary` is asked before and while it waits: it holds a paused job up, tells whether it
        did, and raises where the job is to end.
        """
        grants, granted_s, wanted_s = self._await_devices(phase, iteration, boundary)
        woken_from_s = self._clock.now_s()
        self._engines.wake(POOLS[phase])
        if wake is not None:
            wake()
        now_s = self._clock.now_s()
        hold = Hold(
            phase=phase,
            iteration=iteration,
            grants=grants,
            wanted_s=wanted_s,
            overhead_s=woken_from_s - granted_s,
            woken_s=now_s,
        )
        self._link.emit(
            EventType.PHASE_START,
            iteration=iteration,
            phase=phase,
            device=grants[0].device,
            at_s=now_s,
            data={
                **hold.facts,
                "wait_s": max(0.0, granted_s - wanted_s),
                "switch_s": now_s - woken_from_s,
                "overhead_s": hold.overhead_s,
                # Tells whoever reads the journal that the next rollout may come before this train.
                **({"max_staleness": stale} if (stale := self._config.spec.max_staleness) else {}),
            },
        )
        return hold

    def call(self, hold: Hold, function: Callback) -> Any:
        """Run the user's function on the devices."""
        hold.begun_s = self._clock.now_s()
        return function()

    def release(self, hold: Hold, *, park: Callback | None, found: Mapping[str, Any]) -> None:
        """Park and give every device back; `found` is what the phase told of itself."""
        ended_s = self._clock.now_s()
        if park is not None:
            park()
        self._engines.park(POOLS[hold.phase])
        parked_s = self._clock.now_s()
        devices = [DeviceId.parse(grant.device) for grant in hold.grants]
        pids = {str(device): self._engines.pids(device) for device in devices}
        self._link.parked(hold.grants, pids=pids)
        self._link.await_sent(timeout_s=_SENT_WITHIN_S)
        hold.overhead_s += hold.begun_s - hold.woken_s + self._clock.now_s() - parked_s
        self._link.emit(
            EventType.PHASE_END,
            iteration=hold.iteration,
            phase=hold.phase,
            device=hold.grants[0].device,
            at_s=ended_s,
            prompt=False,
            data={
                **found,
                **hold.facts,
                "run_s": ended_s - hold.begun_s,
                "park_s": parked_s - ended_s,
                "overhead_s": hold.overhead_s,
            },
        )
        if self._owns_process:
            # The next phase keeps this process busy: let the gate see it idle before that.
            self._link.await_withdrawn(hold.grants, timeout_s=_WITHDRAWN_WITHIN_S)

    def _await_devices(
        self, phase: Phase, iteration: int, boundary: Callable[[], bool] | None
    ) -> tuple[tuple[Grant, ...], float, float]:
        """The grants, when the last one came, and since when they were wanted."""
        placement = self._config.placement
        chosen = placement.rollout if phase is Phase.ROLLOUT else placement.train
        devices = tuple(str(device) for device in chosen)
        if boundary is not None:
            boundary()
        wanted_s = self._clock.now_s()
        while True:
            self._link.want(phase, iteration=iteration, devices=devices)
            found = self._link.await_grants(
                (devices,),
                timeout_s=self._config.heartbeat_s,
                unless=lambda desired: boundary is not None and desired != "run",
            )
            if found is not None:
                return *found, wanted_s
            if boundary is not None and boundary():
                # A pause is no wait for devices, and no part of the iteration.
                wanted_s = self._clock.now_s()
