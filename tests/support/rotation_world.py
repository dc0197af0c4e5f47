"""Jobs of fixed phase times that a rotation drives: the drivers' side of its contract."""

from __future__ import annotations

import graphlib
import heapq
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rmux.cluster import DeviceId
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import Member, Placement
from rmux.ids import JobId, NodeId, ProfileId
from rmux.job import Phase
from rmux.place import rotation
from rmux.place.period import Loop
from rmux.place.rotation import Turn, Wanted

Times = tuple[float, float, float]
"""Rollout, train and off-device seconds."""

_Phase = tuple[str, int, int, Phase]
"""(job, life, iteration, phase)"""


def member(
    name: str, rollout: Iterable[str], train: Iterable[str] = ("t",), *, max_staleness: int = 0
) -> Member:
    flat = PhaseEstimate(worst_s=1.0, expected_s=1.0)
    profile = JobProfile(
        id=ProfileId(f"p-{name}"),
        spec_hash="x3:0",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="cpu",
        train_hardware="cpu",
        rollout=flat,
        train=flat,
        sync_s=0.0,
        sync_bytes=0,
        rollout_resident_bytes=0,
        train_resident_bytes=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    placement = Placement(rollout=_devices(rollout), train=_devices(train))
    return Member(
        job_id=JobId(name),
        name=name,
        slo=2.0,
        profile=profile,
        placement=placement,
        max_staleness=max_staleness,
    )


@dataclass
class SimJob:
    """`rolled`, `trained` and `finished` count phases and iterations that are over."""

    member: Member
    rolled: int = 0
    trained: int = 0
    finished: int = 0
    held: dict[Phase, set[DeviceId]] = field(
        default_factory=lambda: {Phase.ROLLOUT: set(), Phase.TRAIN: set()}
    )
    ends: list[float] = field(default_factory=list)
    life: int = 0
    elastic: bool = False
    """Its rollout begins on the first device it gets and gives some back before it ends."""
    left_s: float = 0.0
    """Device-seconds that such a rollout has still to run, as of `at_s`."""
    at_s: float = 0.0
    until_s: float | None = None
    """End of its last devices, once some were given back."""
    version: int = 0
    """Of the foreseen end."""

    def wants(self) -> tuple[Wanted, ...]:
        found = ()
        place = self.member.placement
        if self.finished == self.trained < self.rolled:
            found += self._want(Phase.TRAIN, self.trained, place.train)
        if self.rolled - self.finished <= self.member.max_staleness:
            found += self._want(Phase.ROLLOUT, self.rolled, place.rollout)
        return found

    def _want(
        self, phase: Phase, iteration: int, devices: tuple[DeviceId, ...]
    ) -> tuple[Wanted, ...]:
        if phase is Phase.ROLLOUT and self.until_s is not None:
            return ()  # it had all of them
        left = tuple(device for device in devices if device not in self.held[phase])
        return (Wanted(phase=phase, iteration=iteration, devices=left),) if left else ()


class World:
    def __init__(
        self, members: Sequence[Member], times: Mapping[str, Times], turns: Sequence[str] = ()
    ) -> None:
        self.times, self.now_s = times, 0.0
        self.jobs: dict[JobId, SimJob] = {}
        self.absent: set[JobId] = set()
        self.late: set[JobId] = set()
        """In the next call only."""
        self.busy: dict[DeviceId, JobId] = {}
        self.given: list[tuple[Turn, int]] = []
        """With the life of the job."""
        self.lists: dict[int, tuple[JobId, ...]] = {}
        """The round's list, of each round that a device has begun."""
        self.freed = 0
        """Devices that rollouts gave back early."""
        self.begun_s: dict[tuple[DeviceId, JobId, Phase, int], float] = {}
        self._queue: list[tuple[float, int, JobId, int, str]] = []
        self._counter = itertools.count()
        self.rotation = rotation.start([])
        self.change(members, turns)

    @property
    def members(self) -> list[Member]:
        return [job.member for job in self.jobs.values()]

    def change(self, members: Sequence[Member], turns: Sequence[str] = ()) -> None:
        wanted = {one.job_id: one for one in members}
        for job_id in [job_id for job_id in self.jobs if job_id not in wanted]:
            self.crash(job_id)
            self.absent.discard(job_id)
            del self.jobs[job_id]
        for job_id, one in wanted.items():
            self.jobs.setdefault(job_id, SimJob(one))
        self.rotation = rotation.with_members(
            self.rotation, members, turns=tuple(map(JobId, turns))
        )

    def crash(self, job_id: JobId) -> None:
        """The driver dies and its devices are fenced at once; it starts the iteration again."""
        self.absent.add(job_id)
        job = self.jobs[job_id]
        job.life += 1
        job.rolled = job.trained = job.finished
        job.until_s = None
        for held in job.held.values():
            held.clear()
        self.busy = {d: holder for d, holder in self.busy.items() if holder != job_id}

    def come_back(self, job_id: JobId) -> None:
        self.absent.discard(job_id)

    def dispatch(self) -> None:
        wants = {job_id: job.wants() for job_id, job in self.jobs.items()}
        turns, self.rotation = rotation.next_turns(
            self.rotation,
            wants={
                job_id: some[0] if len(some) == 1 else some
                for job_id, some in wants.items()
                if some and job_id not in self.absent
            },
            busy=set(self.busy),
            absent=self.absent,
            late=self.late,
        )
        self.late = set()
        for turn in turns:
            self._take(turn)
            number, _ = self.rotation.holders[turn.device][1]
            self.lists[number] = self.rotation.rounds.order_of(number)

    def _take(self, turn: Turn) -> None:
        assert turn.device not in self.busy, "a device was given twice"
        job = self.jobs[turn.job_id]
        asked = {want.phase: want for want in job.wants()}
        assert turn.job_id not in self.absent
        assert turn.device in asked[turn.phase].devices, "nobody asked for that"
        assert turn.iteration == asked[turn.phase].iteration
        self.busy[turn.device] = turn.job_id
        begun = (turn.device, turn.job_id, turn.phase, turn.iteration)
        self.begun_s.setdefault(begun, self.now_s)
        self.given.append((turn, job.life))
        held = job.held[turn.phase]
        if turn.phase is Phase.ROLLOUT and job.elastic:
            self._widen(job, turn.device)
            return
        held.add(turn.device)
        place, (rollout_s, train_s, _) = job.member.placement, self.times[turn.job_id]
        if turn.phase is Phase.ROLLOUT and held == set(place.rollout):
            self._push(rollout_s, job, turn.phase)
        elif turn.phase is Phase.TRAIN and held == set(place.train):
            self._push(train_s, job, turn.phase)

    def _widen(self, job: SimJob, device: DeviceId) -> None:
        """One more device works on the rollout."""
        held, total = job.held[Phase.ROLLOUT], len(job.member.placement.rollout)
        rollout_s = self.drawn(job)
        if job.member.max_staleness and len(held) + 1 < total:
            # Its weights may change while it waits: it begins on all of its devices.
            held.add(device)
            return
        if not held or job.member.max_staleness:
            job.left_s = total * rollout_s
        else:
            job.left_s -= len(held) * (self.now_s - job.at_s)
        job.at_s = self.now_s
        held.add(device)
        job.version += 1
        self._push(max(0.0, job.left_s) / len(held), job, f"elastic {job.version}")
        if len(held) == total and total > 1:
            self._push(self.tail(job), job, f"tail {job.version}")

    def _shrink(self, job: SimJob) -> None:
        """Give some devices back; the others end within what the plan allows a whole rollout."""
        held = sorted(job.held[Phase.ROLLOUT])
        kept = held[: max(1, len(held) // 2)]
        for device in held[len(kept) :]:
            del self.busy[device]
            job.held[Phase.ROLLOUT].discard(device)
            self.freed += 1
        job.version += 1
        job.until_s = job.at_s + self.times[job.member.job_id][0]
        self._push(job.until_s - self.now_s, job, f"elastic {job.version}")

    def drawn(self, job: SimJob) -> float:
        """How long this rollout takes on all devices, at most as planned."""
        return self.times[job.member.job_id][0] * self.share(job)

    def tail(self, job: SimJob) -> float:
        """When it gives devices back, from when it has all of them."""
        return job.left_s / len(job.held[Phase.ROLLOUT]) * self.share(job)

    def share(self, job: SimJob) -> float:
        """Pseudo-random in [0.2, 1], the same for one iteration of one job."""
        return 0.2 + 0.8 * (zlib.crc32(f"{job.member.job_id}/{job.rolled}".encode()) % 97 / 96)

    def _push(self, seconds: float, job: SimJob, what: str) -> None:
        item = (self.now_s + seconds, next(self._counter), job.member.job_id, job.life, what)
        heapq.heappush(self._queue, item)

    def step(self) -> bool:
        """To the next instant; False when nothing is running."""
        self.dispatch()
        while self._queue and not self._is_alive(self._queue[0]):
            heapq.heappop(self._queue)
        if not self._queue:
            return False
        self.now_s = self._queue[0][0]
        while self._queue and self._queue[0][0] <= self.now_s:
            item = heapq.heappop(self._queue)
            if self._is_alive(item):
                self._come(self.jobs[item[2]], item[4])
        return True

    def _come(self, job: SimJob, what: str) -> None:
        kind, _, version = what.partition(" ")
        if version and int(version) != job.version:
            return
        if kind == "tail":
            self._shrink(job)
        else:
            self._end(job, "rollout" if kind == "elastic" else what)

    def _is_alive(self, item: tuple[float, int, JobId, int, str]) -> bool:
        return item[2] in self.jobs and self.jobs[item[2]].life == item[3]

    def _end(self, job: SimJob, what: str) -> None:
        if what == "off":
            job.finished += 1
            job.ends.append(self.now_s)
            return
        phase = Phase(what)
        for device in job.held[phase]:
            del self.busy[device]
        job.held[phase].clear()
        if phase is Phase.ROLLOUT:
            job.until_s = None
            job.version += 1
            job.rolled += 1
        else:
            job.trained += 1
            self._push(self.times[job.member.job_id][2], job, "off")

    def used(self, device: DeviceId) -> list[JobId]:
        """Who had the device, one turn after the other."""
        return [turn.job_id for turn, _ in self.given if turn.device == device]

    def precedence(self) -> graphlib.TopologicalSorter[_Phase]:
        """Which phase came before which, on every device and in every job."""
        graph: graphlib.TopologicalSorter[tuple[str, int, int, Phase]] = (
            graphlib.TopologicalSorter()
        )
        last: dict[object, tuple[str, int, int, Phase]] = {}
        for turn, life in self.given:
            phase = (turn.job_id, life, turn.iteration, turn.phase)
            for key in (turn.device, (turn.job_id, turn.phase)):
                if key in last and last[key] != phase:
                    graph.add(phase, last[key])
                last[key] = phase
        return graph

    def loops(self) -> list[Loop]:
        return [
            Loop(
                job_id=one.job_id,
                rollout_s=self.times[one.job_id][0],
                train_s=self.times[one.job_id][1],
                off_device_s=self.times[one.job_id][2],
                rollout=frozenset(one.placement.rollout),
                train=frozenset(one.placement.train),
                max_staleness=one.max_staleness,
            )
            for one in self.members
        ]


def _devices(names: Iterable[str]) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(NodeId(name), 0) for name in names)
