"""Strict order as what it is, a max-plus recurrence: the engine's times without its events.

A phase begins when its job is ready and all its devices are free, and the order of the phases on
every device is known: so each round follows from the one before by maxima and sums alone. It gives
the same milliseconds as the engine on members that stay (property test), and takes microseconds per
phase, which long drift studies need. Members change between two rounds; one that is away (it joins,
is moved, or failed) loses the turns that come up before it is back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from rmux.cluster import DeviceId
from rmux.group import CoExecGroup, Member
from rmux.ids import JobId
from rmux.job import Phase
from rmux.place.sim.durations import Durations, generator
from rmux.place.sim.jobrun import Iteration

Phases = Callable[[Member, int], tuple[int, int, int]]
"""Milliseconds of rollout and train, switch included, and of what follows off the devices, of one
iteration of a member."""


class _Loop:
    __slots__ = ("away_ms", "count", "ends_ms", "limit", "member", "rollout", "train")

    def __init__(self, member: Member, *, ready_ms: int, count: int, limit: int | None) -> None:
        self.member, self.count, self.limit = member, count, limit
        self.rollout: list[int] = []
        """Places in `_free_ms` of the device classes it runs on."""
        self.train: list[int] = []
        self.away_ms = ready_ms
        """Until then its turns are skipped."""
        self.ends_ms = [ready_ms] * (1 + member.max_staleness)
        """Of the newest iterations; the first gates the next rollout, the last the next train."""


class Recurrence:
    """One group. Instants are integer milliseconds."""

    def __init__(self) -> None:
        self._loops: dict[JobId, _Loop] = {}
        self._round: list[_Loop] = []
        self._classes: list[frozenset[DeviceId]] = []
        self._free_ms: list[int] = []

    def set_members(
        self,
        members: Sequence[Member],
        turns: Sequence[JobId] = (),
        *,
        ready_ms: Mapping[JobId, int] | None = None,
        counts: Mapping[JobId, int] | None = None,
        limits: Mapping[JobId, int] | None = None,
    ) -> None:
        """Who goes round from the next round on. Who is new, or was moved, is back at its
        `ready_ms` with so many iterations done; devices and those who stay keep their times. A job
        ends after its limit of iterations."""
        free_ms = {d: at for one, at in zip(self._classes, self._free_ms, strict=True) for d in one}
        before = self._loops
        self._loops = {}
        for member in members:
            known = before.get(member.job_id)
            if known is None or known.member.placement != member.placement:
                job = member.job_id
                known = _Loop(
                    member,
                    ready_ms=(ready_ms or {}).get(job, 0),
                    count=(counts or {}).get(job, 0),
                    limit=(limits or {}).get(job),
                )
            known.member = member
            self._loops[member.job_id] = known
        kept = [job for job in turns if job in self._loops]
        order = [*kept, *(job for job in self._loops if job not in kept)]
        self._round = [self._loops[job] for job in order]
        self._classes = device_classes(members)
        self._free_ms = [max(free_ms.get(d, 0) for d in one) for one in self._classes]
        for loop in self._loops.values():
            place = loop.member.placement
            loop.rollout = _indices(self._classes, place.rollout)
            loop.train = _indices(self._classes, place.train)

    def finished(self, job_id: JobId) -> int:
        return self._loops[job_id].count

    def ready_ms(self, job_id: JobId) -> int:
        """The end of the job's newest iteration, or when it comes back."""
        return self._loops[job_id].ends_ms[-1]

    def lose(self, job_id: JobId, *, back_ms: int) -> None:
        """The job's newest iteration failed; it is away until then and repeats it."""
        loop = self._loops[job_id]
        loop.count -= 1
        loop.ends_ms = [back_ms] * len(loop.ends_ms)
        loop.away_ms = back_ms

    @property
    def begin_ms(self) -> int | None:
        """When the first phase of the next round may begin; None when every job has ended."""
        going = [loop.ends_ms[0] for loop in self._loops.values() if loop.count != loop.limit]
        return min(going, default=None)

    def go_round(self, phases: Phases) -> list[tuple[JobId, Iteration]]:
        """The iterations of one round, in the order of its turns; empty when every job has ended.

        Where every job is away, the first to be back goes.
        """
        found: list[tuple[JobId, Iteration]] = []
        free_ms = self._free_ms
        begin_ms = self.begin_ms or 0
        for loop in self._round:
            if loop.count == loop.limit:
                continue
            turn_ms = max(begin_ms, *(free_ms[one] for one in loop.rollout))
            if loop.away_ms > turn_ms:
                continue
            found.append((loop.member.job_id, self._turn(loop, phases)))
        if not found:
            going = [loop for loop in self._round if loop.count != loop.limit]
            if going:
                first = min(going, key=lambda loop: loop.away_ms)
                found.append((first.member.job_id, self._turn(first, phases)))
        return found

    def _turn(self, loop: _Loop, phases: Phases) -> Iteration:
        free_ms = self._free_ms
        rollout, train, off = phases(loop.member, loop.count)
        begun = loop.ends_ms[0]
        for one in loop.rollout:
            if free_ms[one] > begun:
                begun = free_ms[one]
        rolled = training = begun + rollout
        for one in loop.rollout:
            free_ms[one] = rolled
        if loop.ends_ms[-1] > training:  # one step off-policy
            training = loop.ends_ms[-1]
        for one in loop.train:
            if free_ms[one] > training:
                training = free_ms[one]
        trained = training + train
        for one in loop.train:
            free_ms[one] = trained
        end = trained + off
        loop.ends_ms = [*loop.ends_ms[1:], end]
        loop.count += 1
        loop.away_ms = 0
        return Iteration(begun, rolled, training, trained, end)


def times(
    group: CoExecGroup, *, iterations: int, durations: Durations, seed: int = 0
) -> dict[JobId, list[Iteration]]:
    """What `engine.run` gives for warm jobs that are all there from the begin and leave after their
    iterations, in strict order, where no link is shared and nothing fails."""
    recurrence = Recurrence()
    limits = {member.job_id: iterations for member in group.members}
    recurrence.set_members(group.members, group.turns, limits=limits)
    phases = drawn(durations, seed=seed)
    found: dict[JobId, list[Iteration]] = {member.job_id: [] for member in group.members}
    while done := recurrence.go_round(phases):
        for job_id, one in done:
            found[job_id].append(one)
    return found


def drawn(durations: Durations, *, seed: int) -> Phases:
    """Phases from a source of durations, with the generators that the engine gives it."""
    rngs: dict[JobId, tuple[random.Random, random.Random, random.Random]] = {}
    of = durations.of

    def phases(member: Member, iteration: int) -> tuple[int, int, int]:
        job = member.job_id
        if job not in rngs:
            one, two, three = (generator(seed, job, phase) for phase in _PHASES)
            rngs[job] = (one, two, three)
        roll, train, sync = rngs[job]
        profile = member.profile
        return (
            round(1000 * of(member, Phase.ROLLOUT, iteration, roll))
            + round(1000 * profile.rollout.switch_s),
            round(1000 * of(member, Phase.TRAIN, iteration, train))
            + round(1000 * profile.train.switch_s),
            round(1000 * of(member, Phase.SYNC, iteration, sync))
            + round(1000 * profile.checkpoint_s),
        )

    return phases


_PHASES = (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC)


def device_classes(members: Sequence[Member]) -> list[frozenset[DeviceId]]:
    """Devices that the same jobs use in the same pool: they are always taken and freed at once."""
    users: dict[DeviceId, list[tuple[JobId, bool]]] = {}
    for member in members:
        for is_train, devices in enumerate((member.placement.rollout, member.placement.train)):
            for device in devices:
                users.setdefault(device, []).append((member.job_id, bool(is_train)))
    classes: dict[tuple[tuple[JobId, bool], ...], set[DeviceId]] = {}
    for device, uses in users.items():
        classes.setdefault(tuple(uses), set()).add(device)
    return [frozenset(one) for one in classes.values()]


def _indices(classes: Sequence[frozenset[DeviceId]], devices: Sequence[DeviceId]) -> list[int]:
    wanted = set(devices)
    return [place for place, one in enumerate(classes) if one & wanted]
