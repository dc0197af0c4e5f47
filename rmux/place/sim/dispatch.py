"""Who gets which device next in a simulation: the rotation, or the paper's queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rmux.cluster import DeviceId
from rmux.group import Member
from rmux.ids import JobId
from rmux.job import Phase
from rmux.place import rotation
from rmux.place.rotation import Turn, Wanted


class Dispatch(StrEnum):
    STRICT = "strict"
    """The cyclic order that the live controller keeps."""
    FIFO = "fifo"
    """A queue per device, first come, first served; a phase starts at the head of all its own."""


class Dispatcher(Protocol):
    def set_members(self, members: Sequence[Member], turns: Sequence[JobId]) -> None: ...

    def next_turns(
        self,
        wants: Mapping[JobId, tuple[Wanted, ...]],
        *,
        busy: Set[DeviceId],
        absent: Set[JobId],
    ) -> tuple[Turn, ...]: ...

    def next_job(self, device: DeviceId) -> JobId | None:
        """Who gets the device next, as far as that is known now."""


class Strict:
    """The very rotation of a live group."""

    def __init__(self) -> None:
        self._rotation = rotation.start([])

    def set_members(self, members: Sequence[Member], turns: Sequence[JobId]) -> None:
        self._rotation = rotation.with_members(self._rotation, members, turns=turns)

    def next_turns(
        self,
        wants: Mapping[JobId, tuple[Wanted, ...]],
        *,
        busy: Set[DeviceId],
        absent: Set[JobId],
    ) -> tuple[Turn, ...]:
        if not self._rotation.order:
            return ()
        wanted = {job: several for job, several in wants.items() if several}
        turns, self._rotation = rotation.next_turns(
            self._rotation, wants=wanted, busy=busy, absent=absent
        )
        return turns

    def next_job(self, device: DeviceId) -> JobId | None:
        return self._rotation.next_job(device)


@dataclass(frozen=True, slots=True)
class _Entry:
    job_id: JobId
    phase: Phase
    iteration: int


class Fifo:
    """Queues as the paper draws them. A phase joins all of its queues at once, when it is wanted;
    phases wanted at the same instant join in the order of the members."""

    def __init__(self) -> None:
        self._members: dict[JobId, int] = {}
        self._queues: dict[DeviceId, list[_Entry]] = {}
        self._queued: dict[_Entry, tuple[DeviceId, ...]] = {}

    def set_members(self, members: Sequence[Member], turns: Sequence[JobId]) -> None:
        self._members = {member.job_id: place for place, member in enumerate(members)}
        self._drop(job for job in {entry.job_id for entry in self._queued} - set(self._members))

    def next_turns(
        self,
        wants: Mapping[JobId, tuple[Wanted, ...]],
        *,
        busy: Set[DeviceId],
        absent: Set[JobId],
    ) -> tuple[Turn, ...]:
        self._drop(absent)
        wanted: set[_Entry] = set()
        for job in sorted(wants, key=lambda job: self._members[job]):
            for want in wants[job]:
                entry = _Entry(job, want.phase, want.iteration)
                wanted.add(entry)
                self._enqueue(entry, want.devices)
        turns: list[Turn] = []
        for entry, devices in self._queued.items():
            free = all(self._queues[d][0] == entry and d not in busy for d in devices)
            if free and entry in wanted:
                turns += [_turn(entry, device) for device in devices]
        for turn in turns:
            entry = _Entry(turn.job_id, turn.phase, turn.iteration)
            self._queued.pop(entry, None)
            self._queues[turn.device].remove(entry)
        return tuple(turns)

    def next_job(self, device: DeviceId) -> JobId | None:
        queue = self._queues.get(device)
        return queue[0].job_id if queue else None

    def _enqueue(self, entry: _Entry, devices: tuple[DeviceId, ...]) -> None:
        if entry in self._queued:
            return
        self._queued[entry] = devices
        for device in devices:
            self._queues.setdefault(device, []).append(entry)

    def _drop(self, jobs: Iterable[JobId]) -> None:
        gone = set(jobs)
        for entry in [entry for entry in self._queued if entry.job_id in gone]:
            for device in self._queued.pop(entry):
                self._queues[device].remove(entry)


def make(dispatch: Dispatch) -> Dispatcher:
    return Fifo() if dispatch is Dispatch.FIFO else Strict()


def _turn(entry: _Entry, device: DeviceId) -> Turn:
    return Turn(device=device, job_id=entry.job_id, phase=entry.phase, iteration=entry.iteration)
