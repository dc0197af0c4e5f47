"""What one more job does to the syncs on each link: its own, and those of every group there."""

from __future__ import annotations

from dataclasses import replace

from rmux.cluster import Link
from rmux.ids import JobId
from rmux.place.candidates import Newcomer, Proposal
from rmux.place.index_row import Row
from rmux.place.inventory import Stock
from rmux.place.link import LinkBook, LinkLoad, Plan, load_bps
from rmux.place.period import CLOSE, loop_of, period_of
from rmux.units import format_duration


class Crowding:
    """For one newcomer; each link is planned once with it."""

    def __init__(self, book: LinkBook, job: Newcomer, *, margin: float) -> None:
        self._book, self._job, self._margin = book, job, margin
        self._plans: dict[Link, Plan] = {}
        self._broken: dict[Link, dict[int, str]] = {}

    def link_of(self, one: Proposal) -> Link | None:
        """The link the group syncs over, which that of its first member is."""
        if one.row is not None:
            return self._book.link_of(one.row)
        return self._book.link_between(one.added[0].pool, one.added[-1].pool)

    def syncs_s(self, one: Proposal) -> dict[JobId, float]:
        """Planned syncs that differ from those alone; of the members and of the newcomer."""
        link = self.link_of(one)
        if link is None:
            return {}
        plan, job_id = self._with_newcomer(link), self._job.job_id
        found_s = {job_id: plan.syncs_s[-1]} if plan.syncs_s[-1] > one.needs.sync_s else {}
        if one.row is not None:
            for member, needs in zip(one.row.members, one.row.needs, strict=True):
                if (sync_s := plan.of(member.job_id)) > needs.sync_s:
                    found_s[member.job_id] = sync_s
        return found_s

    def shut(self, row: Row) -> bool:
        """Whether the newcomer's sync breaks a promise outside this group."""
        link = self._book.link_of(row)
        return link is not None and any(rank != row.rank for rank in self._broken_on(link))

    def own_sync_s(self, one: Stock, other: Stock) -> float:
        """The newcomer's own sync between these pools, as planned."""
        link = self._book.link_between(one.name, other.name)
        return 0.0 if link is None else self._with_newcomer(link).syncs_s[-1]

    def load(self, one: Proposal) -> LinkLoad | None:
        """The link with all groups on it and this one as it would be."""
        link = self.link_of(one)
        if link is None:
            return None
        needs, row = one.needs, one.row
        if row is None:
            joined_bps = needs.bits / needs.solo_s if needs.solo_s > 0 else 0.0
        else:
            joined_bps = load_bps(row, joining=needs)
        rank = -1 if row is None else row.rank
        broken = [text for other, text in self._broken_on(link).items() if other != rank]
        return LinkLoad(
            link=link,
            load_bps=self._book.lane(link).load_bps(without=row) + joined_bps,
            sync_s=self._with_newcomer(link).syncs_s[-1],
            breaks=broken[0] if broken else "",
        )

    def _with_newcomer(self, link: Link) -> Plan:
        if link not in self._plans:
            self._plans[link] = self._book.lane(link).plan_with(self._job.needs)
        return self._plans[link]

    def _broken_on(self, link: Link) -> dict[int, str]:
        """The groups, by rank, of which somebody's promise does not stand the newcomer's sync.

        Two are enough: then no group is the only one.
        """
        if link in self._broken:
            return self._broken[link]
        lane, found = self._book.lane(link), self._broken.setdefault(link, {})
        now, then = lane.plan(), self._with_newcomer(link)
        longer = [after > before for before, after in zip(now.syncs_s, then.syncs_s, strict=False)]
        if any(longer):
            at = 0
            for rank, row in lane.rows.items():
                here = longer[at : at + len(row.members)]
                at += len(row.members)
                if any(here) and (text := self._broken_in(row, then)):
                    found[rank] = text
                    if len(found) > 1:
                        break
        return found

    def _broken_in(self, row: Row, plan: Plan) -> str:
        syncs_s = {member.job_id: plan.of(member.job_id) for member in row.members}
        if _stands(row, syncs_s, margin=self._margin):
            return ""
        for job_id, name, iteration_s, cap_s in iterations_s(row, syncs_s):
            factor = 1 + self._margin if len(row.members) > 1 else 1.0
            if iteration_s * factor > cap_s * CLOSE:
                return (
                    f"a sync of {name} in group {row.id} would take up to "
                    f"{format_duration(syncs_s[job_id])}, and its iteration "
                    f"{format_duration(iteration_s * factor)} of {format_duration(cap_s)}"
                )
        return ""


def _stands(row: Row, syncs_s: dict[JobId, float], *, margin: float) -> bool:
    """Whether the largest sum is known to be the period, and keeps every promise."""
    if not row.plain or row.overlapping:
        return False
    waits_s = [
        max(need.sync_s, syncs_s[member.job_id]) - need.sync_s
        for member, need in zip(row.members, row.needs, strict=True)
    ]
    cycle_s = max([need.solo_s + wait_s for need, wait_s in zip(row.needs, waits_s, strict=True)])
    period_s = max(cycle_s, row.load_s)
    factor = 1 + margin if len(row.members) > 1 else 1.0
    return (
        row.train_off_s + sum(waits_s) <= period_s * CLOSE
        and period_s * factor <= row.strict_cap_s * CLOSE
    )


def iterations_s(row: Row, syncs_s: dict[JobId, float]) -> list[tuple[JobId, str, float, float]]:
    """(job, name, seconds per iteration, cap) of a group's members in their round, with these
    syncs in place of the syncs alone."""
    pairs = list(zip(row.members, row.needs, strict=True))
    loops = [
        replace(
            loop_of(member),
            off_device_s=max(need.sync_s, syncs_s.get(member.job_id, 0.0)) + need.checkpoint_s,
        )
        for member, need in pairs
    ]
    period = period_of(loops, order=row.group.round)
    return [
        (member.job_id, member.name, period.iteration_s(member.job_id), need.cap_s)
        for member, need in pairs
    ]
