"""The strict cyclic order in which the members of a group use their devices.

Every device goes round the same list of jobs. A job owns one turn per round on each device it is
placed on; rollout turn k, train turn k, rollout turn k+1 … follow each other, and a turn is used or
lost on all its devices alike. So all turns stand in one total order (round, rollout before train,
place in the list) that every device respects, and the first open turn can always go on: a phase
that collects several devices one by one cannot deadlock, whoever was skipped, joined or left.

Strict order is max-plus, hence monotone: a shorter phase never makes anything later, which is what
makes worst-case admission sound. First come, first served is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from rmux.cluster import DeviceId, PoolKind
from rmux.group import Member, Placement
from rmux.ids import JobId
from rmux.job import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The phase a job is ready to run now, on the devices it was not granted yet."""

    phase: Phase
    iteration: int
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    device: DeviceId
    job_id: JobId
    phase: Phase
    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """`cursors[d]` = round x number of jobs + place in `order` of the next turn on device d."""

    order: tuple[JobId, ...]
    placements: Mapping[JobId, Placement]
    cursors: Mapping[DeviceId, int]
    version: int
    """Counts changes of `order` and `placements`."""
    opens: Mapping[tuple[JobId, PoolKind], int] = field(default_factory=dict)
    """First round whose turn the job can still use in that pool."""
    holders: Mapping[DeviceId, tuple[JobId, int]] = field(default_factory=dict)
    """Who had the last turn on a device, and in which round."""

    def next_job(self, device: DeviceId) -> JobId | None:
        """Whose turn it is on the device; None when nobody is placed on it."""
        if device not in self.cursors:
            return None
        return self.order[_at(self, device, self.cursors[device]) % len(self.order)]


def start(members: Iterable[Member], *, held: Mapping[DeviceId, JobId] | None = None) -> Rotation:
    """A rotation at its beginning; a controller that takes over says who holds which device."""
    blank = Rotation(order=(), placements={}, cursors={}, version=0)
    rotation = with_members(blank, members)
    cursors, holders = dict(rotation.cursors), dict(rotation.holders)
    for device, job_id in (held or {}).items():
        if job_id in rotation.placements and device in rotation.placements[job_id].devices:
            cursors[device] = rotation.order.index(job_id) + 1
            holders[device] = (job_id, 0)
    return replace(rotation, cursors=cursors, holders=holders)


def with_members(rotation: Rotation, members: Iterable[Member]) -> Rotation:
    """Leavers dropped, joiners at the end from the next round on, other turns as they stood.

    A job whose placement changed leaves and joins.
    """
    wanted = {member.job_id: member.placement for member in members}
    stay = tuple(job for job in rotation.order if wanted.get(job) == rotation.placements[job])
    order = stay + tuple(job for job in wanted if job not in stay)
    if order == rotation.order and len(stay) == len(order):
        return rotation
    devices = {device for placement in wanted.values() for device in placement.devices}
    now = {
        device: _moved(rotation, device, stay, size=len(order))
        for device in devices & set(rotation.cursors)
    }
    joined = max((position // len(order) for position in now.values()), default=0)
    opens = {key: first for key, first in rotation.opens.items() if key[0] in stay}
    opens |= {(job, kind): joined for job in order[len(stay) :] for kind in PoolKind}
    return Rotation(
        order=order,
        placements={job: wanted[job] for job in order},
        cursors={device: now.get(device, joined * len(order)) for device in devices},
        version=rotation.version + 1,
        opens=opens,
        holders={d: held for d, held in rotation.holders.items() if d in now and held[0] in stay},
    )


def next_turns(
    rotation: Rotation,
    *,
    wants: Mapping[JobId, Wanted],
    busy: Set[DeviceId],
    absent: Set[JobId],
    late: Set[JobId] = frozenset(),
) -> tuple[tuple[Turn, ...], Rotation]:
    """The turns that can be given now, and the rotation after them.

    `wants` holds what each job is ready for and was not granted yet (a want already granted must be
    taken out by the caller, however stale the report it came in). On each device that is not `busy`
    the job whose turn it is gets it if it wants it, loses it if it is absent, late or cannot use it
    any more, and else is waited for. A turn that already has one of its devices is lost only when
    that device is free again. Where every job is away nothing moves.
    """
    state = _State(rotation, dict(wants), set(busy), absent=absent, late=late)
    devices = sorted(rotation.cursors)
    while sum(state.offer(device) for device in devices):
        pass
    after = replace(rotation, cursors=state.cursors, opens=state.opens, holders=state.holders)
    return tuple(state.turns), after


class _Verdict(Enum):
    GIVE = auto()
    WAIT = auto()
    SKIP = auto()


class _State:
    """Scratch of one call of `next_turns`."""

    def __init__(
        self,
        rotation: Rotation,
        wants: dict[JobId, Wanted],
        busy: set[DeviceId],
        *,
        absent: Set[JobId],
        late: Set[JobId],
    ) -> None:
        self.rotation, self.wants, self.busy = rotation, wants, busy
        self.absent, self.away = absent, absent | late
        self.cursors = dict(rotation.cursors)
        self.opens = dict(rotation.opens)
        self.holders = dict(rotation.holders)
        self.turns: list[Turn] = []

    def offer(self, device: DeviceId) -> bool:
        """Look at one device; True when its cursor moved."""
        order, placements = self.rotation.order, self.rotation.placements
        jobs = [job for job in order if device in placements[job].devices]
        if device in self.busy or all(self._is_lost_for_now(job, device) for job in jobs):
            return False
        before = self.cursors[device]
        while True:
            position = _at(self.rotation, device, self.cursors[device])
            job, turn_round = order[position % len(order)], position // len(order)
            self.cursors[device] = position
            verdict = self._verdict(job, device, turn_round)
            if verdict is not _Verdict.SKIP:
                break
            self.cursors[device] += 1
        if verdict is _Verdict.GIVE:
            self._give(job, device, turn_round)
        return self.cursors[device] != before

    def _is_lost_for_now(self, job: JobId, device: DeviceId) -> bool:
        return job in self.away and not self._has_begun(job, device, self._next_round(job, device))

    def _verdict(self, job: JobId, device: DeviceId, turn_round: int) -> _Verdict:
        kind = _kind(self.rotation.placements[job], device)
        if self.opens.get((job, kind), 0) > turn_round:
            return _Verdict.SKIP
        begun = self._has_begun(job, device, turn_round)
        if job in self.away and not begun:
            self.opens[job, kind] = turn_round + 1
            return _Verdict.SKIP
        want = self.wants.get(job)
        if job in self.absent or want is None or not want.devices:
            return _Verdict.WAIT
        if device not in want.devices:
            waits = self._comes_first(job, want, kind, turn_round)
            return _Verdict.WAIT if waits else _Verdict.SKIP
        placement = self.rotation.placements[job]
        first = max(
            self._next_round(job, other)
            for other in want.devices
            if _kind(placement, other) is kind
        )
        if first > turn_round:  # another device has passed this turn already
            self.opens[job, kind] = first
            return _Verdict.SKIP
        return _Verdict.GIVE

    def _comes_first(self, job: JobId, want: Wanted, kind: PoolKind, turn_round: int) -> bool:
        """Whether the turn the job waits for elsewhere stands before this one."""
        placement = self.rotation.placements[job]
        for device in want.devices:
            other = _kind(placement, device)
            earlier = kind is PoolKind.TRAIN and other is PoolKind.ROLLOUT
            last = turn_round if earlier else turn_round - 1
            turn = max(self._next_round(job, device), self.opens.get((job, other), 0))
            if turn <= last:
                return True
        return False

    def _next_round(self, job: JobId, device: DeviceId) -> int:
        """Round of the job's next turn on the device."""
        size = len(self.rotation.order)
        turn_round, place = divmod(self.cursors[device], size)
        return turn_round if place <= self.rotation.order.index(job) else turn_round + 1

    def _has_begun(self, job: JobId, device: DeviceId, turn_round: int) -> bool:
        placement = self.rotation.placements[job]
        kind = _kind(placement, device)
        return any(
            self.holders.get(other) == (job, turn_round)
            for other in placement.devices
            if other in self.busy and _kind(placement, other) is kind
        )

    def _give(self, job: JobId, device: DeviceId, turn_round: int) -> None:
        want = self.wants[job]
        kind = _kind(self.rotation.placements[job], device)
        self.turns.append(
            Turn(device=device, job_id=job, phase=want.phase, iteration=want.iteration)
        )
        rest = tuple(other for other in want.devices if other != device)
        self.wants[job] = replace(want, devices=rest)
        self.busy.add(device)
        self.holders[device] = (job, turn_round)
        self.cursors[device] += 1
        if want.phase is Phase.INIT:
            return  # the pools are initialised side by side, each at its own pace
        # The job's turns before this one are over in both pools: that keeps them in step.
        rollout = turn_round if kind is PoolKind.ROLLOUT else turn_round + 1
        for pool, first in ((PoolKind.ROLLOUT, rollout), (PoolKind.TRAIN, turn_round)):
            self.opens[job, pool] = max(self.opens.get((job, pool), 0), first)


def _kind(placement: Placement, device: DeviceId) -> PoolKind:
    return PoolKind.ROLLOUT if device in placement.rollout else PoolKind.TRAIN


def _at(rotation: Rotation, device: DeviceId, position: int) -> int:
    """First position from `position` on whose job is placed on the device."""
    size = len(rotation.order)
    while device not in rotation.placements[rotation.order[position % size]].devices:
        position += 1
    return position


def _moved(rotation: Rotation, device: DeviceId, stay: tuple[JobId, ...], *, size: int) -> int:
    """The device's cursor in the new list of `size` jobs: on the next job that stayed."""
    turn_round, place = divmod(rotation.cursors[device], len(rotation.order))
    for job in rotation.order[place:]:
        if job in stay:
            return turn_round * size + stay.index(job)
    return (turn_round + 1) * size
