"""The slow link between two pools, shared by every group that syncs over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmux.cluster import Link
from rmux.group import Member
from rmux.place.inventory import Inventory
from rmux.place.period import period


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What a link carries on average, bits per second."""

    link: Link
    load_bps: float

    @property
    def fits(self) -> bool:
        return self.load_bps <= self.link.rate_bps


def link_of(members: Sequence[Member], inventory: Inventory) -> Link | None:
    """The link a group syncs over; None when no rate is declared between its pools."""
    placement = members[0].placement
    train = inventory.pool_of(placement.train[0].node)
    rollout = inventory.pool_of(placement.rollout[0].node)
    return inventory.state.cluster.link(train.name, rollout.name)


def sync_bps(members: Sequence[Member], period_s: float) -> float:
    """One copy of each member's weights per period, bits per second."""
    sent_bits = 8.0 * sum(member.profile.sync_bytes for member in members)
    return sent_bits / period_s if period_s > 0 else 0.0


def loads_bps(inventory: Inventory) -> dict[Link, float]:
    """Load of every declared link by the groups there are."""
    links = inventory.state.cluster.links
    loads = dict.fromkeys(links, 0.0)
    for group in inventory.state.groups if links else ():
        if not group.members:
            continue
        link = link_of(group.members, inventory)
        if link is not None:
            order = [member.job_id for member in group.members]
            period_s = period(group.members, order=order).period_s
            loads[link] += sync_bps(group.members, period_s)
    return loads
