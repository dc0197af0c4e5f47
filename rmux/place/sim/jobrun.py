"""One job of a phase-level simulation: where it stands in its loop and what it wants next."""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rmux.cluster import DeviceId, PoolKind
from rmux.group import Member
from rmux.ids import GroupId, JobId
from rmux.job import Phase
from rmux.place.rotation import Wanted
from rmux.place.sim.durations import generator
from rmux.place.sim.tails import Progress

UseKey = tuple[Phase, PoolKind]

_LOOK_BACK = 8
"""Iterations of a job that are looked back on to foresee its next."""


class Iteration(NamedTuple):
    """Instants of one finished iteration, milliseconds; a phase begins with its switch."""

    rollout_ms: int
    rolled_ms: int
    train_ms: int
    trained_ms: int
    end_ms: int


@dataclass(slots=True, kw_only=True)
class Use:
    """One phase from its first granted device to its release."""

    phase: Phase
    kind: PoolKind
    iteration: int
    devices: tuple[DeviceId, ...]
    """All that it runs on."""
    wanted_ms: int
    held: dict[DeviceId, int] = field(default_factory=dict)
    """Devices it has, and since when."""
    ran_on: tuple[DeviceId, ...] = ()
    """Devices it began on."""
    began_ms: int | None = None
    switch_ms: int = 0
    version: int = 0
    """Counts changes of its end, so that an end foreseen earlier is told from the real one."""
    is_closed: bool = False
    """It takes no more devices."""
    full_ms: int | None = None
    """When it had all of them."""
    progress: Progress | None = None
    """Of a rollout whose stragglers may move."""

    @property
    def is_complete(self) -> bool:
        return len(self.held) == len(self.devices)


class JobRun:
    """`rolled`, `trained` and `finished` count rollouts done, trains done and iterations whose
    weights are synced; what a failed attempt did not finish is taken back."""

    def __init__(self, member: Member, group_id: GroupId, *, seed: int, limit: int | None) -> None:
        self.member, self.group_id, self.limit = member, group_id, limit
        self.attempt = 1
        self.rolled = self.trained = self.finished = 0
        self.down = False
        """It failed and is not back yet."""
        self.absent = False
        """And its group knows."""
        self.life = 0
        """Counts failures, so that what a dead attempt had under way is told from the new one's."""
        self.to_init: set[PoolKind] = set()
        self.uses: dict[UseKey, Use] = {}
        self.ready: dict[Phase, tuple[int, int]] = {}
        """Of each phase, the iteration it was last ready for and since when."""
        self.fault_rng: random.Random | None = None
        self.syncing: dict[int, int] = {}
        """When the sync of each unfinished iteration began."""
        self.synced: set[int] = set()
        self.open: dict[int, list[int]] = {}
        """Instants so far of every iteration under way."""
        self.iterations: list[Iteration] = []
        self.wait_ms = 0
        self.lost = 0
        self.freed_device_ms = 0
        self.train_ms: deque[int] = deque(maxlen=_LOOK_BACK)
        self.off_ms: deque[int] = deque(maxlen=_LOOK_BACK)
        """What its last trains took, and its last syncs and checkpoints together."""
        self.rngs: dict[Phase, random.Random] = {
            phase: generator(seed, member.job_id, phase) for phase in Phase
        }

    @property
    def id(self) -> JobId:
        return self.member.job_id

    def pool(self, kind: PoolKind) -> tuple[DeviceId, ...]:
        placement = self.member.placement
        return placement.rollout if kind is PoolKind.ROLLOUT else placement.train

    def wants(self) -> tuple[Wanted, ...]:
        """What it is ready for, on the devices it does not have yet; the train first."""
        if self.down or self.absent:
            return ()
        if self.to_init:
            left = [d for kind in sorted(self.to_init) for d in self._left(Phase.INIT, kind)]
            return self._wanted(Phase.INIT, self.finished, left)
        found: tuple[Wanted, ...] = ()
        if self.may_train:
            left = self._left(Phase.TRAIN, PoolKind.TRAIN)
            found += self._wanted(Phase.TRAIN, self.trained, left)
        if self.may_roll:
            left = self._left(Phase.ROLLOUT, PoolKind.ROLLOUT)
            found += self._wanted(Phase.ROLLOUT, self.rolled, left)
        return found

    @property
    def may_train(self) -> bool:
        """The sync and the checkpoint of the iteration before are over, as both run in the main
        thread of a driver."""
        return self.finished == self.trained < self.rolled

    @property
    def may_roll(self) -> bool:
        within = self.limit is None or self.rolled < self.limit
        return within and self.rolled - self.finished <= self.member.max_staleness

    def note_ready(self, now_ms: int) -> None:
        """Waits count from here for what the job wants now and did not want before."""
        for want in self.wants():
            if self.ready.get(want.phase, (-1, 0))[0] != want.iteration:
                self.ready[want.phase] = (want.iteration, now_ms)

    def use(self, phase: Phase, kind: PoolKind) -> Use:
        """The phase under way on that pool; a new one with its first device."""
        use = self.uses.get((phase, kind))
        if use is None:
            numbers = {Phase.ROLLOUT: self.rolled, Phase.TRAIN: self.trained}
            use = self.uses[phase, kind] = Use(
                phase=phase,
                kind=kind,
                iteration=numbers.get(phase, self.finished),
                devices=self.pool(kind),
                wanted_ms=self.ready[phase][1],
            )
        return use

    def wants_any(self, devices: Iterable[DeviceId]) -> bool:
        wanted = {device for want in self.wants() for device in want.devices}
        return not wanted.isdisjoint(devices)

    def ready_in_ms(self, device: DeviceId, *, now_ms: int) -> int | None:
        """Until it wants a rollout on the device, by the plan of what it does now; None while it
        waits for something else itself."""
        if self.wants_any([device]):
            return 0
        profile = self.member.profile
        off_ms = _typical(self.off_ms, 1000 * profile.off_device_s)
        training = self.uses.get((Phase.TRAIN, PoolKind.TRAIN))
        if training is not None and training.began_ms is not None:
            train_ms = _typical(self.train_ms, 1000 * profile.train.planned_s)
            return max(0, training.began_ms + train_ms + off_ms - now_ms)
        if self.syncing:
            return max(0, min(self.syncing.values()) + off_ms - now_ms)
        return None

    def begin_again(self) -> None:
        """Back to the last finished iteration."""
        rolling = self.uses.get((Phase.ROLLOUT, PoolKind.ROLLOUT))
        begun = self.rolled + (rolling is not None and rolling.began_ms is not None)
        self.lost += begun - self.finished
        self.rolled = self.trained = self.finished
        self.uses.clear()
        self.syncing.clear()
        self.synced.clear()
        self.open.clear()
        self.ready.clear()
        self.attempt += 1

    def _left(self, phase: Phase, kind: PoolKind) -> list[DeviceId]:
        use = self.uses.get((phase, kind))
        if use is None:
            return list(self.pool(kind))
        if use.is_closed:
            return []
        return [device for device in use.devices if device not in use.held]

    def _wanted(self, phase: Phase, iteration: int, devices: list[DeviceId]) -> tuple[Wanted, ...]:
        if not devices:
            return ()
        return (Wanted(phase=phase, iteration=iteration, devices=tuple(devices)),)


def _typical(seen_ms: Iterable[int], planned_ms: float) -> int:
    """Median of what was seen; what was planned before that."""
    known = tuple(seen_ms)
    return round(statistics.median(known) if known else planned_ms)
