"""The bounds of `index_bounds` for many groups at once: one array per number, one entry per group.

The operations are those of `RowBounds`, in the same order and on the same doubles, so that both
give the same bounds to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rmux.place.candidates import Newcomer
from rmux.place.index_bounds import BELOW, Asked, Bounded, RowBounds, Sort
from rmux.place.index_judge import MOST, Judge
from rmux.place.index_row import Row
from rmux.place.inventory import Stock
from rmux.place.period import CLOSE

_Floats = npt.NDArray[np.float64]
_Whole = npt.NDArray[np.int64]

_FIRST = 64
"""Groups that are put in order at first; mostly the search ends with one of them."""

_FIELDS = (
    "cycle_s",
    "cap_s",
    "train_load_s",
    "rollout_load_s",
    "load_s",
    "least_load_s",
    "train_free",
    "rollout_free",
    "usable",
    "unused",
    "members",
    "overlapping",
)


class Columns:
    """Implements Bounds. Groups stand in the order of their ranks; who leaves leaves a gap."""

    def __init__(self, rows: Iterable[Row], *, max_members: int) -> None:
        self._max_members = max_members
        self._kinds: dict[tuple[str, str, int], int] = {}
        """By (rollout pool, train pool, train devices); 0 is for groups that take nobody."""
        self._pools: list[tuple[Stock, Stock, int]] = []
        self._fill(list(rows))

    def put(self, row: Row) -> None:
        """A new group, or what changed of one."""
        if row.slot < 0:
            if len(self._rows) == self._kind.size:
                self._make_room()
            row.slot = len(self._rows)
            self._rows.append(row)
        slot = row.slot
        self._kind[slot] = self._kind_of(row)
        if not row.members:
            return
        self._table[:, slot] = (
            row.cycle_s,
            row.cap_s,
            row.train_load_s,
            row.rollout_load_s,
            row.load_s,
            row.least_load_s,
            row.train_free,
            row.rollout_free,
            row.usable,
            row.unused,
            len(row.members),
            row.overlapping,
        )
        for count, least_s in self._least_s.items():
            least_s[slot] = row.loads_least_s(count)

    def drop(self, row: Row) -> None:
        self._kind[row.slot] = 0
        self._rows[row.slot], row.slot = None, -1
        self._gaps += 1
        if self._gaps > _FIRST and 2 * self._gaps > len(self._rows):
            self._fill([one for one in self._rows if one is not None])

    def sorted(self, sort: Sort, judge: Judge) -> Iterator[Bounded]:
        asked = Asked(judge)
        slots, tight = self._promising(sort, judge, asked)
        whole = _whole(tight * BELOW)
        price = nodes = np.zeros(len(slots), dtype=np.int64)
        if sort is Sort.SCALED:
            price, nodes = self._grown(slots, asked.count)
        overlapping = self._column("overlapping")[slots] > 0
        if sort is Sort.OVERLAPPING:
            overlapping = np.ones(len(slots), dtype=bool)
        if judge.paper:
            whole, nodes, overlapping = whole * 0, nodes * 0, overlapping & False
        keys = (overlapping, nodes, price) if sort is Sort.SCALED else ()
        for at in _in_order(whole, *keys):
            row = self._rows[slots[at]]
            if row is not None:
                key = (int(price[at]), int(nodes[at]), bool(overlapping[at]), int(whole[at]))
                yield key, row.rank, row

    def nearest(self, judge: Judge, count: int) -> list[Row]:
        """Of those that take such jobs at all, if any does."""
        size, asked = len(self._rows), Asked(judge)
        if not size:
            return []
        with np.errstate(divide="ignore", invalid="ignore"):
            miss = self._base_s(asked) / self._column("cap_s")
        miss[~self._open(judge.job)[self._kind[:size]]] = MOST
        miss[self._kind[:size] == 0] = 2 * MOST
        some = np.argpartition(miss, min(count, size - 1))[: 2 * count]
        rows = [row for at in sorted(some, key=lambda at: miss[at]) if (row := self._rows[at])]
        return RowBounds(rows, max_members=self._max_members).nearest(judge, count)

    def _promising(self, sort: Sort, judge: Judge, asked: Asked) -> tuple[_Whole, _Floats]:
        """Groups whose bound keeps every promise, and how tight it is."""
        column, size = self._column, len(self._rows)
        fits = self._open(judge.job)[self._kind[:size]]
        fits &= column("train_free") >= asked.train_bytes
        if self._max_members:
            fits &= column("members") < self._max_members
        if judge.paper:
            fits &= column("load_s") < column("cycle_s")
        if sort is Sort.SCALED:
            here_s: _Floats | float = 0.0
            missing = _missing(column("unused"), asked.count)
            available = np.array([0, *[stock.available for stock, _, _ in self._pools]])
            fits &= missing <= available[self._kind[:size]]
        else:
            fits &= column("rollout_free") >= asked.rollout_bytes
            if sort is Sort.APART:
                here_s = self._least(asked.count)
                fits &= column("overlapping") == 0
            else:
                here_s = column("least_load_s")
                fits &= column("usable") >= asked.count
        period_s = np.maximum(self._base_s(asked), here_s + asked.rollout_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            tight = period_s / np.minimum(column("cap_s"), asked.cap_s)
            fits &= tight * asked.factor <= CLOSE
        slots = np.flatnonzero(fits)
        return slots, tight[slots]

    def _base_s(self, asked: Asked) -> _Floats:
        loops_s = [asked.judge.own_loop_s(rollout, train) for rollout, train, _ in self._pools]
        own_s = np.maximum(np.array([0.0, *loops_s]), asked.rollout_s)
        base_s: _Floats = own_s[self._kind[: len(self._rows)]]
        np.maximum(base_s, self._column("cycle_s"), out=base_s)
        np.maximum(base_s, self._column("train_load_s") + asked.train_s, out=base_s)
        np.maximum(base_s, self._column("rollout_load_s"), out=base_s)
        return base_s

    def _grown(self, slots: _Whole, count: int) -> tuple[_Whole, _Whole]:
        """(price, nodes) of the further nodes at least, as the judge's preference counts them."""
        missing = _missing(self._column("unused")[slots], count)
        usd_per_h = np.array([0.0, *[s.usd_per_device_h for s, _, _ in self._pools]])
        largest = np.array([1, *[stock.largest for stock, _, _ in self._pools]])
        kinds = self._kind[slots]
        price = _whole(missing * usd_per_h[kinds] * BELOW)
        return price, np.ceil(missing / largest[kinds]).astype(np.int64)

    def _open(self, job: Newcomer) -> npt.NDArray[np.bool_]:
        """By kind: whether its hardware and its train devices suit the job."""
        profile = job.profile
        return np.array(
            [
                False,
                *[
                    rollout.hardware == profile.rollout_hardware
                    and train.hardware == profile.train_hardware
                    and job.deals(degree)
                    for rollout, train, degree in self._pools
                ],
            ]
        )

    def _kind_of(self, row: Row) -> int:
        if not row.members or row.refusal is not None:
            return 0
        key = (row.stock.name, row.train_stock.name, len(row.train))
        if key not in self._kinds:
            self._pools.append((row.stock, row.train_stock, len(row.train)))
            self._kinds[key] = len(self._pools)
        return self._kinds[key]

    def _column(self, name: str) -> _Floats:
        return self._table[_FIELDS.index(name), : len(self._rows)]

    def _least(self, count: int) -> _Floats:
        """`Row.loads_least_s` of every group; a width that is new is looked up once."""
        if count not in self._least_s:
            least_s = np.full(self._kind.size, np.inf)
            for row in self._rows:
                if row is not None and row.members:
                    least_s[row.slot] = row.loads_least_s(count)
            self._least_s[count] = least_s
        return self._least_s[count][: len(self._rows)]

    def _fill(self, rows: Sequence[Row]) -> None:
        room = max(_FIRST, 2 * len(rows))
        self._rows: list[Row | None] = []
        self._gaps = 0
        self._kind = np.zeros(room, dtype=np.int64)
        self._table = np.zeros((len(_FIELDS), room))
        widths = {len(seat.devices) for row in rows if row.members for seat in row.seats}
        self._least_s: dict[int, _Floats] = {width: np.full(room, np.inf) for width in widths}
        for row in rows:
            row.slot = -1
            self.put(row)

    def _make_room(self) -> None:
        size = self._kind.size
        self._kind = np.concatenate([self._kind, np.zeros(size, dtype=np.int64)])
        self._table = np.concatenate([self._table, np.zeros((len(_FIELDS), size))], axis=1)
        for count, least_s in self._least_s.items():
            self._least_s[count] = np.concatenate([least_s, np.full(size, np.inf)])


def _missing(unused: _Floats, count: int) -> _Floats:
    return np.where(unused < count, count - unused, count)


def _whole(values: _Floats) -> _Whole:
    """`index_judge.whole` of each."""
    return np.floor(np.minimum(values, MOST) * 1e9 + 0.5).astype(np.int64)


def _in_order(whole: _Whole, *others: npt.NDArray[np.generic]) -> Iterator[int]:
    """Indices by key, the weightiest last, equal ones as they stand.

    With one key the first few come before the others are put in order.
    """
    rest = np.arange(len(whole))
    if not others and len(whole) > 2 * _FIRST:
        least = np.partition(whole, _FIRST)[_FIRST]
        first = np.flatnonzero(whole <= least)
        yield from first[np.argsort(whole[first], kind="stable")]
        rest = np.flatnonzero(whole > least)
    yield from rest[np.lexsort((whole[rest], *[values[rest] for values in others]))]
