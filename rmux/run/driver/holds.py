"""Phases on devices: wait for the grants, wake, and after the function park and give back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmux.clock import Clock
from rmux.cluster import DeviceId, PoolKind
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.driver.engines import DriverConfig, Engines
from rmux.run.driver.holds_team import Team, Where
from rmux.run.driver.link import Link
from rmux.run.driver.tail import TailWatch
from rmux.run.driver.tail_facts import Lengths
from rmux.run.messages import Grant

POOLS = {Phase.ROLLOUT: PoolKind.ROLLOUT, Phase.TRAIN: PoolKind.TRAIN}
_SENT_WITHIN_S = 0.05
_WITHDRAWN_WITHIN_S = 0.5
_TOGETHER_S = 0.02
"""Grants of one turn come this close to each other; a rollout had better begin on all of them."""

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
    team: Team | None = None
    """Of a rollout whose devices come and go."""

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
        failed: Callable[[Exception], None],
    ) -> None:
        """`failed` is called from another thread when an error is to end a running phase."""
        self._config, self._link, self._engines = config, link, engines
        self._clock = clock
        self._owns_process = owns_process
        self._failed = failed
        self._watch = _watch(config, link, engines, clock) if config.spec.migrates else None

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
        did, and raises where the job is to end. A rollout that may move begins on the first devices
        that it gets; with a `wake` of its own it waits for all.
        """
        watch = self._watch if phase is Phase.ROLLOUT and wake is None else None
        # One step off-policy those ahead would delay others: see `place.rotation`.
        singly = watch is not None and not self._config.spec.max_staleness
        grants, granted_s, wanted_s = self._await_devices(phase, iteration, boundary, singly=singly)
        missing = self._missing(phase, grants)
        woken_from_s = self._clock.now_s()
        on = [DeviceId.parse(grant.device) for grant in grants] if missing else None
        self._engines.wake(POOLS[phase], on)
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
        if watch is not None:
            hold.team = Team(
                grants,
                Where(iteration=iteration, wanted_s=wanted_s, missing=missing),
                link=self._link,
                engines=self._engines,
                watch=watch,
                clock=self._clock,
                failed=self._failed,
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
        """Run the user's function on the devices. Raises what went wrong with these meanwhile."""
        hold.begun_s = self._clock.now_s()
        if hold.team is None:
            return function()
        hold.team.start()
        try:
            result = function()
        except BaseException:
            hold.team.abandon()
            if hold.team.error is not None:
                raise hold.team.error from None
            raise
        hold.team.stop()
        if hold.team.error is not None:
            raise hold.team.error
        return result

    def release(self, hold: Hold, *, park: Callback | None, found: Mapping[str, Any]) -> None:
        """Park and give every device back; `found` is what the phase told of itself."""
        team, on = hold.team, None
        ended_s = self._clock.now_s()
        if team is not None:
            team.stop()
            hold.grants = team.grants
            found = {**found, "whole": team.is_whole}
            on = None if team.is_whole else sorted(team.awake)
        if park is not None:
            park()
        self._engines.park(POOLS[hold.phase], on)
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
        if team is not None and self._watch is not None:
            self._watch.end()
        if self._owns_process:
            # The next phase keeps this process busy: let the gate see it idle before that.
            self._link.await_withdrawn(hold.grants, timeout_s=_WITHDRAWN_WITHIN_S)

    def _await_devices(
        self,
        phase: Phase,
        iteration: int,
        boundary: Callable[[], bool] | None,
        *,
        singly: bool,
    ) -> tuple[tuple[Grant, ...], float, float]:
        """The grants, when the last one came, and since when they were wanted."""
        devices = self._devices(phase)
        choices = (devices, *((device,) for device in devices if singly))
        if boundary is not None:
            boundary()
        wanted_s = self._clock.now_s()
        while True:
            self._link.want(phase, iteration=iteration, devices=devices)
            found = self._link.await_grants(
                choices,
                timeout_s=self._config.heartbeat_s,
                unless=lambda desired: boundary is not None and desired != "run",
            )
            if found is not None:
                return *self._with_others(phase, *found), wanted_s
            if boundary is not None and boundary():
                # A pause is no wait for devices, and no part of the iteration.
                wanted_s = self._clock.now_s()

    def _with_others(
        self, phase: Phase, grants: tuple[Grant, ...], granted_s: float
    ) -> tuple[tuple[Grant, ...], float]:
        """Also what comes at the same time, by way of another gate."""
        until_s = granted_s + _TOGETHER_S
        while missing := self._missing(phase, grants):
            choices = (missing, *((device,) for device in missing))
            left_s = until_s - self._clock.now_s()
            found = self._link.await_grants(choices, timeout_s=left_s) if left_s > 0 else None
            if found is None:
                break
            grants, granted_s = grants + found[0], found[1]
        return grants, granted_s

    def _missing(self, phase: Phase, grants: Sequence[Grant]) -> tuple[str, ...]:
        here = {grant.device for grant in grants}
        return tuple(device for device in self._devices(phase) if device not in here)

    def _devices(self, phase: Phase) -> tuple[str, ...]:
        placement = self._config.placement
        chosen = placement.rollout if phase is Phase.ROLLOUT else placement.train
        return tuple(str(device) for device in chosen)


def _watch(config: DriverConfig, link: Link, engines: Engines, clock: Clock) -> TailWatch:
    return TailWatch(
        config,
        fleet=engines.fleet,
        after=lambda grant: link.foreseen.after(grant, now_s=clock.now_s()),
        lengths=Lengths(
            config.run_dir / "lengths.json", limit_tokens=config.spec.rollout.max_tokens
        ),
        now_s=clock.now_s,
    )
