"""What a newcomer could get in a group at best: bounds that cost a few operations per group.

Each bound is no greater than the preference that the judge would find, so a search that looks at
groups in the order of their bounds, and stops where the bound exceeds what it found, has found the
best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Protocol

from rmux.place.candidates import Newcomer, refusal_of
from rmux.place.index_judge import Judge, Key, saturated, tightness, whole
from rmux.place.index_row import Row
from rmux.place.period import CLOSE

BELOW = 1 - 1e-12
"""Sums taken in another order differ by less."""


class Sort(IntEnum):
    """Places of one group by what they cost."""

    APART = 0
    """On its devices, no sets overlapping in part."""
    OVERLAPPING = 1
    SCALED = 2


Bounded = tuple[Key, int, Row]
"""(bound, rank, group)"""


class Bounds(Protocol):
    def sorted(self, sort: Sort, judge: Judge) -> Iterator[Bounded]:
        """Groups that may have such a place, best bound first, then in their order."""

    def nearest(self, judge: Judge, count: int) -> list[Row]:
        """The groups that miss their bounds by least."""


class Asked:
    """The newcomer's numbers as bounds use them; at least what it needs in any group."""

    __slots__ = (
        "cap_s",
        "count",
        "factor",
        "judge",
        "rollout_bytes",
        "rollout_s",
        "train_bytes",
        "train_s",
    )

    def __init__(self, judge: Judge) -> None:
        needs, self.count = judge.job.needs, judge.job.count
        self.rollout_s, self.train_s = needs.rollout_s, needs.train_s
        self.judge = judge
        self.cap_s = needs.cap_s * needs.repeats
        self.factor = (1.0 if judge.paper else 1 + judge.margin) * BELOW
        least = 1 if judge.paper else 0
        self.rollout_bytes, self.train_bytes = (
            needs.rollout_bytes + least,
            needs.train_bytes + least,
        )


class RowBounds:
    """Group by group; for few groups."""

    def __init__(self, rows: Iterable[Row], *, max_members: int) -> None:
        self._rows, self._max_members = rows, max_members

    def sorted(self, sort: Sort, judge: Judge) -> Iterator[Bounded]:
        asked, job, found = Asked(judge), judge.job, []
        for row in self._rows:
            tight = self._tight(row, sort, asked)
            if tight * asked.factor > CLOSE or (judge.paper and saturated(row)):
                continue
            if self.closed(row, job):
                continue
            found.append((self._key(row, sort, judge, tight), row.rank, row))
        found.sort(key=lambda each: each[:2])
        return iter(found)

    def nearest(self, judge: Judge, count: int) -> list[Row]:
        asked = Asked(judge)
        rows = [row for row in self._rows if row.members]
        rows.sort(key=lambda row: (self.closed(row, judge.job), _base_s(row, asked) / row.cap_s))
        return rows[:count]

    def closed(self, row: Row, job: Newcomer) -> bool:
        """Whether the group takes no such job at all."""
        return 0 < self._max_members <= len(row.members) or refusal_of(row, job) is not None

    def _tight(self, row: Row, sort: Sort, asked: Asked) -> float:
        if not row.members or row.train_free < asked.train_bytes:
            return float("inf")
        base_s = _base_s(row, asked)
        if sort is Sort.SCALED:
            here_s = 0.0 if row.missing(asked.count) <= row.stock.available else float("inf")
        elif row.rollout_free < asked.rollout_bytes:
            return float("inf")
        elif sort is Sort.APART:
            here_s = row.loads_least_s(asked.count) if not row.overlapping else float("inf")
        else:
            here_s = row.least_load_s if row.usable >= asked.count else float("inf")
        return tightness(max(base_s, here_s + asked.rollout_s), min(row.cap_s, asked.cap_s))

    def _key(self, row: Row, sort: Sort, judge: Judge, tight: float) -> Key:
        price = nodes = 0
        if sort is Sort.SCALED:
            missing = row.missing(judge.job.count)
            price = whole(missing * row.stock.usd_per_device_h * BELOW)
            nodes = -(-missing // row.stock.largest)
        if judge.paper:
            return (price, 0, False, 0)
        overlapping = sort is Sort.OVERLAPPING or row.overlapping
        return (price, nodes, overlapping, whole(tight * BELOW))


def _base_s(row: Row, asked: Asked) -> float:
    """A period is no shorter, wherever the newcomer rolls out."""
    return max(
        row.cycle_s,
        asked.judge.own_loop_s(row.stock, row.train_stock),
        row.train_load_s + asked.train_s,
        row.rollout_load_s,
        asked.rollout_s,
    )
