"""Whether one place keeps every promise, in numbers only: the one judge of scans and of the index.

The interval rule: with L the seconds per iteration after the job joined, feasible iff
`L x (1 + margin) <= SLO_k x S_k` for every old and new member k, every node's host memory suffices
and the links carry the syncs of all groups. The margin pays for interference and jitter; a job that
is alone meets none. `paper` is Algorithm 1 of RollMux, without margin and links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rmux.group import Member, member_of
from rmux.ids import JobId, NodeId
from rmux.place import candidates as places
from rmux.place.candidates import Newcomer, Proposal
from rmux.place.index_links import Crowding
from rmux.place.index_row import Row
from rmux.place.inventory import Inventory, Stock
from rmux.place.link import LinkBook
from rmux.place.period import CLOSE, Loop, Period, best_round, loop_of, period_of
from rmux.place.residency import NodeMemory

Key = tuple[int, int, bool, int]
"""(price, new nodes, overlapping, tightness): the smaller is preferred."""


def tightness(period_s: float, cap_s: float) -> float:
    """How much of what it may take an iteration takes; 1 keeps the promise exactly."""
    if cap_s > 0:
        return period_s / cap_s
    return 0.0 if period_s <= 0 else float("inf")


def whole(value: float) -> int:
    """USD/h or a tightness in steps of 1e-9, so that rounding errors decide nothing."""
    return math.floor(min(value, MOST) * 1e9 + 0.5)


MOST = 1e6
"""Values from here on are equal: whole steps of more would not be exact."""


class Timing:
    """What the members' iterations take at one place."""

    __slots__ = ("period", "period_s", "tight")

    def __init__(self, period_s: float, tight: float, period: Period | None) -> None:
        self.period_s, self.tight = period_s, tight
        self.period = period
        """None where the largest sum is known to be the period, in any order."""


class Judge:
    """Judges places for one newcomer."""

    def __init__(
        self, known: Inventory, links: LinkBook | None, job: Newcomer, *, rule: str, margin: float
    ) -> None:
        self.known, self.job, self.margin = known, job, margin
        self.paper = rule == "paper"
        self.links = None if links is None or self.paper else Crowding(links, job, margin=margin)

    def key(self, one: Proposal) -> Key | None:
        """What it is preferred by; None when it breaks a bound."""
        timing = self.timing(one)
        if not self.in_time(one, timing) or not self.in_memory(one):
            return None
        if self.links is not None:
            load = self.links.load(one)
            if load is not None and not load.fits:
                return None
        price = whole(self.usd_per_h(one))
        if self.paper:
            return (price, 0, False, 0)
        return (price, len(one.added), not one.apart, whole(timing.tight))

    def usd_per_h(self, one: Proposal) -> float:
        """Hourly price of the added nodes."""
        added = one.added
        if not added:
            return 0.0
        stocks = self.known.stocks
        return sum([stocks[n.pool].usd_per_device_h * n.num_devices for n in added])

    def in_time(self, one: Proposal, timing: Timing) -> bool:
        return timing.tight * self.shared(one) <= CLOSE

    def shared(self, one: Proposal) -> float:
        """The factor of the margin."""
        return 1.0 if one.row is None or self.paper else 1 + self.margin

    def timing(self, one: Proposal) -> Timing:
        row, needs = one.row, one.needs
        if self.links is not None and (syncs_s := self.links.syncs_s(one)):
            return self._exact(one, syncs_s)
        if row is None:
            return Timing(needs.solo_s, tightness(needs.solo_s, needs.cap_s), None)
        if not one.apart or not (self.paper or (row.plain and needs.plain)):
            return self._exact(one, {})
        return self._closed(row, one) or self._exact(one, {})

    def _closed(self, row: Row, one: Proposal) -> Timing | None:
        """The largest sum where it is the period whatever the order: see `period`."""
        needs, seat = one.needs, one.seat
        timing = self.largest_sum(row, one)
        roomy = timing.period_s * CLOSE
        if row.train_off_s + needs.train_s + needs.off_s > roomy:
            here_s = (0.0 if seat is None else seat.off_load_s) + needs.rollout_s + needs.off_s
            if row.rollout_off_s > roomy or here_s > roomy:
                return None
        return timing

    def largest_sum(self, row: Row, one: Proposal) -> Timing:
        """The longest loop or load of the group: no period is shorter."""
        needs, seat = one.needs, one.seat
        period_s = max(
            row.cycle_s,
            needs.solo_s,
            row.train_load_s + needs.train_s,
            row.rollout_load_s,
            (0.0 if seat is None else seat.load_s) + needs.rollout_s,
        )
        return Timing(period_s, tightness(period_s, min(row.strict_cap_s, needs.cap_s)), None)

    def _exact(self, one: Proposal, syncs_s: dict[JobId, float]) -> Timing:
        """By the event graph; with `syncs_s` in place of the syncs alone."""
        loops, caps_s = self.loops(one, syncs_s), self.caps_s(one)
        if self.paper:
            period = period_of(loops, order=[loop.job_id for loop in loops])
        else:
            factor = self.shared(one)
            kept_s = {job: cap_s / factor for job, cap_s in caps_s.items()}
            period = best_round(loops, caps_s=kept_s)
        tight = max([tightness(period.iteration_s(job), cap_s) for job, cap_s in caps_s.items()])
        return Timing(period.period_s, tight, period)

    def own_loop_s(self, rollout: Stock, train: Stock) -> float:
        """The newcomer's loop between these pools with its sync as planned, at least."""
        needs = self.job.needs
        if self.links is None:
            return needs.solo_s
        sync_s = max(needs.sync_s, self.links.own_sync_s(rollout, train))
        return needs.loop_s(sync_s + needs.checkpoint_s)

    def members(self, one: Proposal) -> list[Member]:
        job = self.job
        new = member_of(job.spec, job.profile, job_id=job.job_id, placement=one.placement)
        return [*(() if one.row is None else one.row.members), new]

    def loops(self, one: Proposal, syncs_s: dict[JobId, float]) -> list[Loop]:
        loops = [loop_of(member) for member in self.members(one)]
        if not syncs_s:
            return loops
        needs = [*(() if one.row is None else one.row.needs), one.needs]
        return [
            replace(loop, off_device_s=syncs_s.get(loop.job_id, need.sync_s) + need.checkpoint_s)
            for loop, need in zip(loops, needs, strict=True)
        ]

    def caps_s(self, one: Proposal) -> dict[JobId, float]:
        """Longest iteration that each member accepts."""
        row = one.row
        caps_s = {self.job.job_id: one.needs.cap_s}
        if row is not None:
            for member, need in zip(row.members, row.needs, strict=True):
                caps_s[member.job_id] = need.cap_s
        return caps_s

    def in_memory(self, one: Proposal) -> bool:
        """Algorithm 1, line 8, refuses where nothing would be left."""
        least = 1 if self.paper else 0
        return all(node.free_bytes >= least for node in self.memory(one))

    def memory(self, one: Proposal) -> tuple[NodeMemory, ...]:
        """The plan of each node that the job is placed on; the paper knows no peaks of switches."""
        needs, row = one.needs, one.row
        peaks = not self.paper and (needs.peak_bytes or (row is not None and row.with_peaks))
        added = {node.id: node for node in one.added}
        if row is not None:
            train_nodes, free_bytes = row.train_nodes, row.free_bytes
        else:
            train_nodes = tuple([node for node in added if node not in one.nodes])
            free_bytes = {}
        found = []
        for nodes, need in ((one.nodes, needs.rollout_bytes), (train_nodes, needs.train_bytes)):
            for node in nodes:
                limit = (added.get(node) or self.known.node(node)).usable_memory_bytes
                found.append(
                    NodeMemory(
                        node=node,
                        resident_bytes=limit - free_bytes.get(node, limit) + need,
                        switch_bytes=self.switching_bytes(one, node) if peaks else 0,
                        limit_bytes=limit,
                    )
                )
        return tuple(found)

    def switching_bytes(self, one: Proposal, node: NodeId) -> int:
        if one.row is None:
            return one.needs.peak_bytes
        return one.row.switching_bytes(
            node, joining=((*one.rollout, *one.train), one.needs.peak_bytes)
        )

    def packings(self, row: Row) -> Iterator[Proposal]:
        return places.packings(row, self.job)

    def scalings(self, row: Row) -> Iterator[Proposal]:
        return places.scalings(self.known, row, self.job)

    def isolated(self) -> Iterator[Proposal]:
        return places.isolated(self.known, self.job)


def saturated(row: Row) -> bool:
    """Algorithm 1, line 4: the load is not below the cycle."""
    return row.load_s >= row.cycle_s
