"""The turns of a group in their one total order, as the round goes by and as it changes.

A position is (round, place in the round's list). The list may change between two rounds, so the
rounds lie in stretches that have one list each; a job may stand in a list several times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from rmux.cluster import DeviceId
from rmux.errors import InternalError
from rmux.group import Placement
from rmux.ids import JobId

Position = tuple[int, int]
"""(round, place in its list)."""

START: Position = (0, 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rounds of the same list, from round `first` on."""

    first: int
    order: tuple[JobId, ...]
    places: Mapping[JobId | DeviceId, tuple[int, ...]]
    """Where each job stands in the list, and on each device all the jobs that use it."""

    @staticmethod
    def of(first: int, order: tuple[JobId, ...], placements: Mapping[JobId, Placement]) -> Stretch:
        places: dict[JobId | DeviceId, list[int]] = {}
        for place, job in enumerate(order):
            places.setdefault(job, []).append(place)
            for device in placements[job].devices:
                places.setdefault(device, []).append(place)
        return Stretch(first, order, {key: tuple(found) for key, found in places.items()})

    def without(self, gone: Set[JobId], placements: Mapping[JobId, Placement]) -> Stretch:
        if gone.isdisjoint(self.order):
            return self
        order = tuple(job for job in self.order if job not in gone)
        return Stretch.of(self.first, order, placements)


@dataclass(frozen=True, slots=True)
class Rounds:
    stretches: tuple[Stretch, ...] = ()
    """Oldest first; the last one has no end."""

    @property
    def order(self) -> tuple[JobId, ...]:
        """The newest list."""
        return self.stretches[-1].order if self.stretches else ()

    def order_of(self, number: int) -> tuple[JobId, ...]:
        """The list of that round."""
        return self._stretch(number).order if self.stretches else ()

    def job_at(self, position: Position) -> JobId:
        return self._stretch(position[0]).order[position[1]]

    def after(self, position: Position) -> Position:
        number, place = position
        if place + 1 < len(self._stretch(number).order):
            return number, place + 1
        return number + 1, 0

    def turn(self, who: JobId | DeviceId, start: Position) -> Position:
        """First turn from `start` on that the job has, or that anybody has on the device.

        InternalError when there is none in the newest list.
        """
        number, place = start
        last = len(self.stretches) - 1
        for index, stretch in enumerate(self.stretches):
            end = self.stretches[index + 1].first if index < last else None
            if end is not None and number >= end:
                continue
            if number < stretch.first:
                number, place = stretch.first, 0
            places = stretch.places.get(who)
            if places is not None:
                later = bisect_left(places, place)
                if later < len(places):
                    return number, places[later]
                if end is None or number + 1 < end:
                    return number + 1, places[0]
            if end is not None:
                number, place = end, 0
        raise InternalError(f"{who} has no turn in the round")

    def without(self, gone: Set[JobId], placements: Mapping[JobId, Placement]) -> Rounds:
        """The same rounds without some jobs; positions in them move, see `moved`."""
        if not gone:
            return self
        fewer = (stretch.without(gone, placements) for stretch in self.stretches)
        # Whoever is in a list is in all later ones, so the empty ones come first.
        return Rounds(tuple(stretch for stretch in fewer if stretch.order))

    def moved(self, position: Position, gone: Set[JobId]) -> Position:
        """The same position where these jobs are gone: on the next turn that stayed."""
        number, place = position
        if not gone or not self.stretches or number < self.stretches[0].first:
            return position
        order = self._stretch(number).order
        return number, sum(job not in gone for job in order[:place])

    def from_round(self, first: int, newest: Stretch, *, oldest: int) -> Rounds:
        """`newest` from round `first` on, whatever was to come there; forget what no round from
        `oldest` on needs."""
        kept = [stretch for stretch in self.stretches if stretch.first < first]
        kept.append(newest)
        while len(kept) > 1 and kept[1].first <= oldest:
            kept.pop(0)
        return Rounds(tuple(kept))

    def first_open(self, order: tuple[JobId, ...], cursors: Iterable[Position]) -> int:
        """The round from which on a new list can hold: the first that no device has begun.

        A list that only adds jobs at the end can hold in the furthest round already.
        """
        number, place = max(cursors, default=START)
        now = self.order_of(number)
        return number if order[: len(now)] == now else number + (place > 0)

    def _stretch(self, number: int) -> Stretch:
        for stretch in reversed(self.stretches):
            if stretch.first <= number:
                return stretch
        return self.stretches[0]
