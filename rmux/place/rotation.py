"""The strict cyclic order in which the members of a group use their devices.

Every device goes round the same list of jobs, its round. A job owns one turn per round on each
device it is placed on, or k where it stands k times in the round. Rollout turn n, train turn n,
rollout turn n+1 … of a job follow each other, and a turn is used or lost on all its devices alike.
So all turns stand in one total order (round, place in the list, rollout before train) that every
device respects, and the first open turn can always go on: a phase that collects several devices one
by one cannot deadlock, whoever was skipped, joined or left. A rollout may give devices back early,
or, on-policy, begin on the first of them and end before it had them all: the rest of its turn is
passed over. A new list holds from the first round that no device has begun, so that the order stays
total.

One step off-policy, a job may want its next rollout while its train is still to come. Both have
turns of their own, and each iteration has the same turn in both pools. Its rollout begins on all of
its devices: one that ran ahead on some would lose turns to its own train, and delay others.

Strict order is max-plus, hence monotone: a shorter phase never makes anything later, which is what
makes worst-case admission sound. First come, first served is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from rmux.cluster import DeviceId, PoolKind
from rmux.group import Member, Placement
from rmux.ids import JobId
from rmux.job import Phase
from rmux.place.rounds import START, Position, Rounds, Stretch

Begun = tuple[tuple[int, Position], ...]
"""(iteration, first turn that is still its own) of a job's newest iterations, in their order."""


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
    rounds: Rounds
    placements: Mapping[JobId, Placement]
    cursors: Mapping[DeviceId, Position]
    """From where on each device looks for its next turn."""
    version: int
    """Counts changes of `order` and `placements`."""
    opens: Mapping[tuple[JobId, PoolKind], Position] = field(default_factory=dict)
    """First turn the job can still use in that pool, where it lost some."""
    begun: Mapping[JobId, Begun] = field(default_factory=dict)
    holders: Mapping[DeviceId, tuple[JobId, Position]] = field(default_factory=dict)
    """Who had the last turn on a device, and which one."""

    @property
    def order(self) -> tuple[JobId, ...]:
        """The jobs of one round; a new order shows here before its first round."""
        return self.rounds.order

    def next_job(self, device: DeviceId) -> JobId | None:
        """Whose turn it is on the device; None when nobody is placed on it."""
        if device not in self.cursors:
            return None
        return self.rounds.job_at(self.rounds.turn(device, self.cursors[device]))

    def next_jobs(self, device: DeviceId) -> tuple[JobId, ...]:
        """The jobs of the turns to come on the device, a round of them; lost turns left out."""
        if device not in self.cursors:
            return ()
        found: list[JobId] = []
        at = self.cursors[device]
        for _ in self.order:
            turn = self.rounds.turn(device, at)
            job = self.rounds.job_at(turn)
            if self.opens.get((job, _kind(self.placements[job], device)), START) <= turn:
                found.append(job)
            at = self.rounds.after(turn)
        return tuple(found)


def start(
    members: Iterable[Member],
    *,
    turns: Sequence[JobId] = (),
    held: Mapping[DeviceId, JobId] | None = None,
) -> Rotation:
    """A rotation at its beginning; a controller that takes over says who holds which device.

    `turns` is one round in its order, a job of k iterations a round in it k times; members it does
    not name come last, once each.
    """
    blank = Rotation(rounds=Rounds(), placements={}, cursors={}, version=0)
    rotation = with_members(blank, members, turns=turns)
    cursors, holders = dict(rotation.cursors), dict(rotation.holders)
    for device, job_id in (held or {}).items():
        if job_id in rotation.placements and device in rotation.placements[job_id].devices:
            turn = rotation.rounds.turn(job_id, START)
            cursors[device] = rotation.rounds.after(turn)
            holders[device] = (job_id, turn)
    return replace(rotation, cursors=cursors, holders=holders)


def with_members(
    rotation: Rotation, members: Iterable[Member], *, turns: Sequence[JobId] = ()
) -> Rotation:
    """Leavers dropped at once; a new order from the first round that no device has begun.

    `turns` as in `start`. Without it everybody has one turn a round, in the order as it stands,
    and joiners come last. Where joiners at the end are all that changes, they are in from the
    furthest round on. A job whose placement changed leaves and joins. The same object when nothing
    changed.
    """
    wanted = {member.job_id: member.placement for member in members}
    gone = {job for job, place in rotation.placements.items() if wanted.get(job) != place}
    order = _order(rotation.order, wanted, turns, gone=gone)
    if order == rotation.order and not gone:
        return rotation
    if not wanted:
        return Rotation(rounds=Rounds(), placements={}, cursors={}, version=rotation.version + 1)

    def moved(position: Position) -> Position:
        return rotation.rounds.moved(position, gone)

    devices = {device for placement in wanted.values() for device in placement.devices}
    now = {d: moved(cursor) for d, cursor in rotation.cursors.items() if d in devices}
    rounds = rotation.rounds.without(gone, wanted)
    first = rounds.first_open(order, now.values())
    oldest = min((number for number, _ in now.values()), default=first)
    return Rotation(
        rounds=rounds.from_round(first, Stretch.of(first, order, wanted), oldest=oldest),
        placements=wanted,
        cursors={device: now.get(device, (first, 0)) for device in devices},
        version=rotation.version + 1,
        opens={key: moved(at) for key, at in rotation.opens.items() if key[0] not in gone},
        begun={
            job: tuple((iteration, moved(at)) for iteration, at in known)
            for job, known in rotation.begun.items()
            if job not in gone
        },
        holders={
            device: (job, moved(turn))
            for device, (job, turn) in rotation.holders.items()
            if device in now and job not in gone
        },
    )


def next_turns(
    rotation: Rotation,
    *,
    wants: Mapping[JobId, Wanted | tuple[Wanted, ...]],
    busy: Set[DeviceId],
    absent: Set[JobId],
    late: Set[JobId] = frozenset(),
) -> tuple[tuple[Turn, ...], Rotation]:
    """The turns that can be given now, and the rotation after them.

    `wants` holds what each job is ready for and was not granted yet (a want already granted must be
    taken out by the caller, however stale the report it came in); a job one step off-policy may be
    ready for its train and for the rollout after it. On each device that is not `busy` the job
    whose turn it is gets it if it wants it, loses it if it is absent, late or cannot use it any
    more, and else is waited for. A turn that already has one of its devices is lost only when that
    device is free again. Where every job is away nothing moves.
    """
    state = _State(rotation, wants, set(busy), absent=absent, late=late)
    devices = sorted(rotation.cursors)
    while sum(state.offer(device) for device in devices):
        pass
    after = replace(
        rotation,
        cursors=state.cursors,
        opens=state.opens,
        begun=state.begun,
        holders=state.holders,
    )
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
        wants: Mapping[JobId, Wanted | tuple[Wanted, ...]],
        busy: set[DeviceId],
        *,
        absent: Set[JobId],
        late: Set[JobId],
    ) -> None:
        self.rounds, self.placements, self.busy = rotation.rounds, rotation.placements, busy
        self.wants = {
            job: some if isinstance(some, tuple) else (some,) for job, some in wants.items()
        }
        self.absent, self.away = absent, absent | late
        self.cursors = dict(rotation.cursors)
        self.opens = dict(rotation.opens)
        self.begun = dict(rotation.begun)
        self.holders = dict(rotation.holders)
        self.turns: list[Turn] = []

    def offer(self, device: DeviceId) -> bool:
        """Look at one device; True when its cursor moved."""
        if device in self.busy or self._is_all_lost(device):
            return False
        before = self.cursors[device]
        while True:
            turn = self.rounds.turn(device, self.cursors[device])
            job = self.rounds.job_at(turn)
            verdict, want = self._verdict(job, device, turn)
            if verdict is not _Verdict.SKIP:
                break
            self.cursors[device] = self.rounds.after(turn)
        if want is not None:
            self._give(job, device, turn, want)
        return self.cursors[device] != before

    def _is_all_lost(self, device: DeviceId) -> bool:
        """Whether nobody can use the device for now."""
        users = [job for job, place in self.placements.items() if device in place.devices]
        if not all(job in self.away for job in users):
            return False
        return not any(
            self._has_begun(job, device, self.rounds.turn(job, self.cursors[device]))
            for job in users
        )

    def _verdict(
        self, job: JobId, device: DeviceId, turn: Position
    ) -> tuple[_Verdict, Wanted | None]:
        """What becomes of the turn, and what it is given for."""
        kind = _kind(self.placements[job], device)
        begun = self._has_begun(job, device, turn)
        if self.opens.get((job, kind), START) > turn and not begun:
            return _Verdict.SKIP, None
        if job in self.away and not begun:
            self.opens[job, kind] = self.rounds.after(turn)
            return _Verdict.SKIP, None
        wants = [want for want in self.wants.get(job, ()) if want.devices]
        if job in self.absent or not wants:
            passed = not begun and self._is_passed(job, device, turn)
            return _Verdict.SKIP if passed else _Verdict.WAIT, None
        want = next((want for want in wants if device in want.devices), None)
        if want is None:
            waits = any(self._comes_first(job, one, kind, turn) for one in wants)
            return _Verdict.WAIT if waits else _Verdict.SKIP, None
        # Past turns that another of its devices has passed or that are another iteration's.
        first = self._first(job, want, kind, begun=begun)
        if first > turn:
            self.opens[job, kind] = first
            return _Verdict.SKIP, None
        return _Verdict.GIVE, want

    def _is_passed(self, job: JobId, device: DeviceId, turn: Position) -> bool:
        """Whether the turn is over on another of its devices: a phase may end before it had all."""
        placement = self.placements[job]
        kind = _kind(placement, device)
        return any(
            self.cursors[other] > turn
            for other in placement.devices
            if other != device and _kind(placement, other) is kind
        )

    def _comes_first(self, job: JobId, want: Wanted, kind: PoolKind, turn: Position) -> bool:
        """Whether the turn the job waits for elsewhere stands before this one."""
        placement = self.placements[job]
        for other in {_kind(placement, device) for device in want.devices}:
            least = max(
                self._first(job, want, other, begun=False),
                self.opens.get((job, other), START),
            )
            elsewhere = self.rounds.turn(job, least)
            earlier = kind is PoolKind.TRAIN and other is PoolKind.ROLLOUT
            if elsewhere < turn or (earlier and elsewhere == turn):
                return True
        return False

    def _first(self, job: JobId, want: Wanted, kind: PoolKind, *, begun: bool) -> Position:
        """No turn before it can have all the wanted devices of the pool."""
        placement = self.placements[job]
        passed = max(self.cursors[d] for d in want.devices if _kind(placement, d) is kind)
        return passed if begun else max(passed, self._own(job, want))

    def _own(self, job: JobId, want: Wanted) -> Position:
        """First turn that is not an earlier iteration's in either pool: that keeps them in step."""
        known = self.begun.get(job, ())
        if not known or want.phase is Phase.INIT:
            return START
        if want.phase is Phase.ROLLOUT and want.iteration < known[-1][0]:
            return known[-1][1]  # it starts again after a failure
        for iteration, turn in reversed(known):
            if iteration == want.iteration:
                return turn
            if iteration < want.iteration:
                return self.rounds.after(self.rounds.turn(job, turn))
        return START

    def _has_begun(self, job: JobId, device: DeviceId, turn: Position) -> bool:
        placement = self.placements[job]
        kind = _kind(placement, device)
        return any(
            self.holders.get(other) == (job, turn)
            for other in placement.devices
            if other in self.busy and _kind(placement, other) is kind
        )

    def _give(self, job: JobId, device: DeviceId, turn: Position, want: Wanted) -> None:
        self.turns.append(
            Turn(device=device, job_id=job, phase=want.phase, iteration=want.iteration)
        )
        rest = replace(want, devices=tuple(other for other in want.devices if other != device))
        self.wants[job] = tuple(rest if one is want else one for one in self.wants[job])
        self.busy.add(device)
        self.holders[device] = (job, turn)
        self.cursors[device] = self.rounds.after(turn)
        # The pools are initialised side by side, each at its own pace.
        if want.phase is not Phase.INIT:
            self.begun[job] = self._begun_after(job, want, turn)

    def _begun_after(self, job: JobId, want: Wanted, turn: Position) -> Begun:
        number = want.iteration
        known = dict(self.begun.get(job, ()))
        known[number] = max(turn, known.get(number, START))
        if want.phase is Phase.ROLLOUT:
            # Rollouts of later iterations were those of a failed attempt.
            return tuple(sorted(one for one in known.items() if number - 1 <= one[0] <= number))
        known[number + 1] = max(self.rounds.after(turn), known.get(number + 1, START))
        return tuple(sorted(one for one in known.items() if one[0] >= number))


def _kind(placement: Placement, device: DeviceId) -> PoolKind:
    return PoolKind.ROLLOUT if device in placement.rollout else PoolKind.TRAIN


def _order(
    before: Iterable[JobId],
    wanted: Mapping[JobId, Placement],
    turns: Sequence[JobId],
    *,
    gone: Set[JobId],
) -> tuple[JobId, ...]:
    named = tuple(job for job in turns if job in wanted)
    stayed = [job for job in before if job not in gone]
    return named + tuple(job for job in dict.fromkeys([*stayed, *wanted]) if job not in named)
