"""The devices of a rollout under way: some come, some go, in a thread beside the function."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmux.clock import Clock
from rmux.cluster import DeviceId, PoolKind
from rmux.errors import ConflictError
from rmux.events import EventType
from rmux.job import Phase
from rmux.run.driver.engines import Engines
from rmux.run.driver.link import Link
from rmux.run.driver.tail import Move, TailWatch
from rmux.run.messages import Grant

_log = logging.getLogger(__name__)

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The rollout a team belongs to."""

    iteration: int
    wanted_s: float
    missing: tuple[str, ...]
    """Devices that it still waits for when it begins."""


class Team:
    """`failed` is called from the thread when an error, then in `error`, is to end the phase."""

    def __init__(
        self,
        grants: Sequence[Grant],
        where: Where,
        *,
        link: Link,
        engines: Engines,
        watch: TailWatch,
        clock: Clock,
        failed: Callable[[Exception], None],
    ) -> None:
        self._link, self._engines, self._watch, self._clock = link, engines, watch, clock
        self._failed, self._where = failed, where
        self._missing = where.missing
        self.grants = tuple(grants)
        """Those it has now."""
        self.awake = {DeviceId.parse(grant.device) for grant in grants}
        self.is_whole = not where.missing
        """Whether it ran on all of its devices from begin to end."""
        self.error: Exception | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rollout-devices", daemon=True)

    def start(self) -> None:
        self._watch.begin()
        self._thread.start()

    def stop(self) -> None:
        """The user's function is over: what is still waited for is wanted no more. Waits for what
        the thread does now."""
        self.abandon()
        self._thread.join()

    def abandon(self) -> None:
        """End the thread soon, without waiting for it."""
        self._closing = True
        self._link.unwant(Phase.ROLLOUT)

    def _run(self) -> None:
        try:
            while not self._closing:
                found = self._await()
                if found and not self._closing:
                    self._take_in(found)
                elif not self._missing and not self._closing:
                    self._look()
        except Exception as error:  # noqa: BLE001 - it ends the phase, in the main thread
            if self._closing:
                _log.warning("while the rollout ended: %s", error)
            else:
                _log.exception("a rollout's devices")
            self.error = error
            if not self._closing:
                self._failed(error)

    def _await(self) -> tuple[Grant, ...]:
        """The next grants; none after a while."""
        if not self._missing:
            self._link.await_desired(lambda _: self._closing, timeout_s=_LOOK_S)
            return ()
        choices = (self._missing, *((device,) for device in self._missing))
        found = self._link.await_grants(choices, timeout_s=_LOOK_S, unless=lambda _: self._closing)
        if found is None:
            return ()
        self.grants += found[0]
        taken = {grant.device for grant in found[0]}
        self._missing = tuple(device for device in self._missing if device not in taken)
        return found[0]

    def _take_in(self, grants: tuple[Grant, ...]) -> None:
        devices = [DeviceId.parse(grant.device) for grant in grants]
        from_s = self._clock.now_s()
        self._engines.wake(PoolKind.ROLLOUT, devices)
        self.awake |= set(devices)
        now_s = self._clock.now_s()
        for grant in grants:
            self._emit(
                EventType.DEVICE_JOINED,
                grant,
                at_s=now_s,
                wait_s=from_s - self._where.wanted_s,
                switch_s=now_s - from_s,
            )
        taken = self._engines.fleet().join(devices)
        _log.info("%s joined and took over %d requests", ", ".join(map(str, devices)), taken)

    def _look(self) -> None:
        move = self._watch.look(self.grants)
        if move is None:
            return
        try:
            self._move(move)
        except ConflictError as error:
            # The rollout ended, or lost a worker, since the question was asked.
            _log.info("the tail stays where it is: %s", error)

    def _move(self, move: Move) -> None:
        freed = move.decision.freed
        from_s = self._clock.now_s()
        report = self._engines.fleet().leave(freed, homes=move.homes)
        self.is_whole = False
        left_s = self._clock.now_s()
        self._engines.park(PoolKind.ROLLOUT, freed)
        self.awake -= set(freed)
        gone = tuple(one for one in self.grants if DeviceId.parse(one.device) in freed)
        self.grants = tuple(one for one in self.grants if one not in gone)
        pids = {str(device): self._engines.pids(device) for device in freed}
        self._link.parked(gone, pids=pids)
        parked_s = self._clock.now_s()
        self._watch.note_moved(move, seconds=left_s - from_s)
        for grant in gone:
            self._emit(EventType.DEVICE_LEFT, grant, at_s=parked_s, park_s=parked_s - left_s)
        self._link.emit(
            EventType.TAIL_MOVED,
            iteration=self._where.iteration,
            phase=Phase.ROLLOUT,
            device=str(freed[0]),
            data={
                "reason": move.decision.reason,
                "freed": [str(device) for device in freed],
                "kept": [grant.device for grant in self.grants],
                "next": move.job,
                "done": move.done,
                "requests": report.requests,
                "tokens_carried": report.tokens_carried,
                "tokens_recomputed": report.tokens_recomputed,
                "exact": report.exact,
                "gain_device_s": move.decision.gain_device_s,
                "cost_device_s": move.decision.cost_device_s,
                "rest_s": move.decision.rest_s,
                "seconds": parked_s - from_s,
            },
        )

    def _emit(self, kind: EventType, grant: Grant, *, at_s: float, **data: float) -> None:
        self._link.emit(
            kind,
            iteration=self._where.iteration,
            phase=Phase.ROLLOUT,
            device=grant.device,
            at_s=at_s,
            data={"epoch": grant.epoch, "seq": grant.seq, **data},
        )
