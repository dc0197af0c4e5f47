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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rmux.cluster import Link, Node
from rmux.ids import JobId
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


class LinkBook:
    """All syncs on every declared link, kept by group."""

    def __init__(self, known: Inventory) -> None:
        self._known = known
        self._rows: dict[Link, dict[int, Row]] = {link: {} for link in known.cluster.links}
        self._bps: dict[Link, dict[int, float]] = {link: {} for link in known.cluster.links}
        self._planned: dict[Link, dict[JobId, float]] = {}

    def link_of(self, row: Row) -> Link | None:
        """The link a group syncs over; None when no rate is declared between its pools."""
        if not row.members:
            return None
        return self._known.link(row.train_stock.name, row.stock.name)

    def link_between(self, one: Node, other: Node) -> Link | None:
        return self._known.link(one.pool, other.pool)

    def put(self, row: Row) -> None:
        link = self.link_of(row)
        if link is not None:
            self._rows[link][row.rank] = row
            self._bps[link][row.rank] = load_bps(row)
            self._planned.pop(link, None)

    def drop(self, row: Row) -> None:
        for link, rows in self._rows.items():
            if rows.pop(row.rank, None) is not None:
                del self._bps[link][row.rank]
                self._planned.pop(link, None)

    def rows(self, link: Link) -> dict[int, Row]:
        return self._rows[link]

    def load_bps(self, link: Link, *, without: Row | None = None) -> float:
        """On average, of all groups but one, whatever the order they came in."""
        loads = self._bps[link]
        left = -1 if without is None else without.rank
        return math.fsum(load for rank, load in loads.items() if rank != left)

    def planned(self, link: Link) -> dict[JobId, float]:
        """The syncs of all jobs on the link as planned now, seconds."""
        if link not in self._planned:
            self._planned[link] = self.planned_with(link, None, None)
        return self._planned[link]

    def planned_with(
        self, link: Link, job_id: JobId | None, needs: Needs | None
    ) -> dict[JobId, float]:
        """The syncs when one more job syncs over the link."""
        jobs = [
            (member.job_id, need)
            for row in self._rows[link].values()
            for member, need in zip(row.members, row.needs, strict=True)
        ]
        if job_id is not None and needs is not None:
            jobs.append((job_id, needs))
        planned = worst_syncs_s([need for _, need in jobs], link.rate_bps)
        return {job: sync_s for (job, _), sync_s in zip(jobs, planned, strict=True)}


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
