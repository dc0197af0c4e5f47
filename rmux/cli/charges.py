"""What each member of a group is charged now: by what it held lately, else by the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmux import timeline
from rmux.cluster import Cluster
from rmux.events import EventType
from rmux.group import CoExecGroup
from rmux.ids import GroupId, JobId

if TYPE_CHECKING:
    from rmux.store.engine import Conn

MOST_MEASURED = 50
"""Groups whose events are read at once; where there are more, all are charged by plan."""

_EVENTS = 400
"""Of a group: some forty rounds of two jobs on one device of each kind, five on eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One group's price and who is charged how much of it, USD/h."""

    usd_per_h: float
    by_job: Mapping[JobId, float]
    basis: str
    """'measured', or 'planned' while not every member has held devices for a few iterations."""


def of_groups(
    conn: Conn, found: Iterable[CoExecGroup], cluster: Cluster
) -> Mapping[GroupId, Charge]:
    from rmux.place.charge import Prices

    chosen, prices = list(found), Prices(cluster)
    measured = len(chosen) <= MOST_MEASURED
    return {one.id: of_group(conn, one, prices.usd_per_h(one), measured=measured) for one in chosen}


def of_group(conn: Conn, group: CoExecGroup, usd_per_h: float, *, measured: bool = True) -> Charge:
    """With the price of the group, USD/h."""
    from rmux.place import charge
    from rmux.store import events

    held = None
    if measured and group.members:
        kinds = (EventType.GRANT, EventType.RELEASED)
        recent = events.latest(conn, group=group.id, types=kinds, limit=_EVENTS)
        held = charge.measured_held_s(group, timeline.holds(recent))
    return Charge(
        usd_per_h=usd_per_h,
        by_job=charge.shares_of(group, usd_per_h, held_s=held),
        basis="planned" if held is None else "measured",
    )


def of_jobs(conn: Conn, group_ids: Iterable[GroupId | None]) -> Mapping[JobId, float]:
    """USD/h charged to the members of these groups."""
    from rmux.store import groups, pools

    wanted = list(dict.fromkeys(one for one in group_ids if one is not None))
    if not wanted:
        return {}
    if len(wanted) <= MOST_MEASURED:
        chosen = [groups.get(conn, one) for one in wanted]
    else:
        chosen = [one for one in groups.ls(conn) if one.id in set(wanted)]
    found = of_groups(conn, chosen, pools.load(conn))
    return {job: usd for charge in found.values() for job, usd in charge.by_job.items()}
