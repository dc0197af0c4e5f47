"""The slow link between two pools, shared by every group that syncs over it.

A link of C bit/s is shared max-min fairly by the syncs on it. Alone, job j moves its bits b_j at
c_j = b_j / sync_s, at most C. It is slowest when others are on the link at the wrong time: while x
of its bits move at a fair share of the link, each other job k moves at most min(x, n_k b_k) bits,
with n_k = 1 + floor(W / e_k) syncs that can fall into the time W when k takes e_k seconds from one
sync to the next; the link is full then, so this takes (x + sum_k min(x, n_k b_k)) / C. The rest
moves at c_j. So W_j <= max over x in [0, b_j] of (b_j - x)/c_j + (x + sum_k min(x, n_k b_k)) / C:
concave and piecewise linear in x, greatest where more than C/c_j - 1 others have bits left. W is on
both sides through n_k, and the smallest solution is reached from below. With more than `FEW` jobs
on a link, n_k is counted for the longest sync of them all, which is no shorter: one pass for
everybody.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rmux.cluster import Link
from rmux.ids import JobId, PoolName
from rmux.place.index_needs import Needs
from rmux.place.index_row import Row
from rmux.place.inventory import Inventory

FEW = 64

_ROUNDS = 200
"""Times the number of overlapping syncs is counted again before the plan is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What a link carries on average, bits per second, and the job's own sync as planned."""

    link: Link
    load_bps: float
    sync_s: float = 0.0
    """With the worst overlap of all other syncs on the link."""
    breaks: str = ""
    """Whose promise the overlap with this job's sync would break, in another group."""

    @property
    def fits(self) -> bool:
        return self.load_bps <= self.link.rate_bps and not self.breaks


def worst_syncs_s(transfers: Sequence[Needs], rate_bps: float) -> list[float]:
    """Longest sync of each job when all others sync at the worst time, seconds.

    A job whose promise is broken by then gets what is known of it so far: too much already.
    """
    if len(transfers) < 2:
        return [_alone_s(one, rate_bps) for one in transfers]
    if len(transfers) > FEW:
        from rmux.place.link_columns import worst_of_many_s

        return worst_of_many_s(transfers, rate_bps, rounds=_ROUNDS)
    sizes = sorted(one.bits for one in transfers)
    sums = [0.0, *accumulate(sizes)]
    soonest_s = min(one.expected_s for one in transfers)
    found = []
    for index, one in enumerate(transfers):
        worst_s = _worst_s(one, sizes, sums, rate_bps)
        if worst_s >= soonest_s and one.bits:
            others = [other for at, other in enumerate(transfers) if at != index]
            worst_s = _repeated_s(one, others, worst_s, rate_bps)
        found.append(worst_s)
    return found


def _alone_s(one: Needs, rate_bps: float) -> float:
    return max(one.sync_s, one.bits / rate_bps)


def _worst_s(one: Needs, sizes: Sequence[float], sums: Sequence[float], rate_bps: float) -> float:
    """W for given bits of all jobs in ascending order, this one's among them."""
    if not one.bits:
        return one.sync_s
    alone_s = _alone_s(one, rate_bps)
    # The link is the bottleneck while at least this many others send.
    crowd = max(0, math.floor(rate_bps * alone_s / one.bits - 1) + 1)
    own = bisect_left(sizes, one.bits)
    shared = one.bits
    if crowd:
        # The crowd-th largest of the others.
        at = len(sizes) - crowd
        at = at if at > own else at - 1
        shared = min(one.bits, sizes[at]) if at >= 0 else 0.0
    smaller = bisect_left(sizes, shared)
    moved = sums[smaller] + shared * (len(sizes) - smaller)
    return (one.bits - shared) / one.bits * alone_s + moved / rate_bps


def _repeated_s(one: Needs, others: Sequence[Needs], worst_s: float, rate_bps: float) -> float:
    """W where some others can sync more than once meanwhile."""
    limit_s = one.longest_sync_s
    for _ in range(_ROUNDS):
        if worst_s > limit_s:
            return worst_s
        sizes = sorted(
            [
                one.bits,
                *(
                    other.bits * (1 + math.floor(worst_s / other.expected_s))
                    if other.expected_s > 0
                    else (one.bits if other.bits else 0.0)
                    for other in others
                ),
            ]
        )
        again_s = _worst_s(one, sizes, [0.0, *accumulate(sizes)], rate_bps)
        if again_s <= worst_s:
            return worst_s
        worst_s = again_s
    return worst_s + limit_s


class Plan:
    """The longest sync of every job on one link, seconds; the newcomer's comes last."""

    __slots__ = ("_at", "syncs_s")

    def __init__(self, at: Mapping[JobId, int], syncs_s: Sequence[float]) -> None:
        self._at, self.syncs_s = at, syncs_s

    def of(self, job_id: JobId) -> float:
        return self.syncs_s[self._at[job_id]]


class LinkBook:
    """All syncs on every declared link, kept by group."""

    def __init__(self, known: Inventory) -> None:
        self._known = known
        self._lanes = {link: Lane(link) for link in known.cluster.links}

    def link_of(self, row: Row) -> Link | None:
        """The link a group syncs over; None when no rate is declared between its pools."""
        if not row.members:
            return None
        return self._known.link(row.train_stock.name, row.stock.name)

    def link_between(self, one: PoolName, other: PoolName) -> Link | None:
        return self._known.link(one, other)

    def put(self, row: Row) -> None:
        link = self.link_of(row)
        if link is not None:
            self._lanes[link].put(row)

    def drop(self, row: Row) -> None:
        for lane in self._lanes.values():
            lane.drop(row)

    def lane(self, link: Link) -> Lane:
        return self._lanes[link]


class Lane:
    """One link with the groups on it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.rows: dict[int, Row] = {}
        self._bps: dict[int, float] = {}
        self._plan: Plan | None = None
        self._sum_bps: float | None = None
        self._needs: list[Needs] | None = None
        self._at: dict[JobId, int] = {}

    def put(self, row: Row) -> None:
        self.rows[row.rank] = row
        self._bps[row.rank] = load_bps(row)
        self._forget()

    def drop(self, row: Row) -> None:
        if self.rows.pop(row.rank, None) is not None:
            del self._bps[row.rank]
            self._forget()

    def load_bps(self, *, without: Row | None) -> float:
        """On average, of all groups but one, whatever the order they came in."""
        if self._sum_bps is None:
            self._sum_bps = math.fsum(self._bps.values())
        return self._sum_bps - (0.0 if without is None else self._bps[without.rank])

    def plan(self) -> Plan:
        """The syncs as planned now."""
        if self._plan is None:
            self._plan = self.plan_with(None)
        return self._plan

    def plan_with(self, newcomer: Needs | None) -> Plan:
        """The syncs when one more job syncs over the link."""
        if self._needs is None:
            rows = self.rows.values()
            self._needs = [need for row in rows for need in row.needs]
            jobs = [member.job_id for row in rows for member in row.members]
            self._at = {job_id: at for at, job_id in enumerate(jobs)}
        needs = self._needs if newcomer is None else [*self._needs, newcomer]
        return Plan(self._at, worst_syncs_s(needs, self._link.rate_bps))

    def _forget(self) -> None:
        self._plan = self._sum_bps = self._needs = None


def load_bps(row: Row, *, joining: Needs | None = None) -> float:
    """What a group's syncs load a link with on average, at most: no iteration is shorter than the
    largest sum, nor than the job's own loop."""
    needs = row.needs if joining is None else [*row.needs, joining]
    if not all(each.plain for each in needs):
        return sum(each.bits / each.solo_s for each in needs if each.solo_s > 0)
    shortest_s = max(row.cycle_s, row.load_s)
    if joining is not None:
        shortest_s = max(shortest_s, joining.solo_s, row.train_load_s + joining.train_s)
    sent_bits = sum(each.bits for each in needs)
    return sent_bits / shortest_s if shortest_s > 0 else 0.0
