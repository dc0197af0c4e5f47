"""Tenants as documents and rows: what each may cost, what it costs, how many jobs it has."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from rmux.cli import charges
from rmux.cli.documents_pools import TenantList, TenantRecord
from rmux.cli.output import Column, Table
from rmux.cli.pool_views import policy_part
from rmux.cluster import Tenant
from rmux.group import ClusterState
from rmux.job import JobState

if TYPE_CHECKING:
    from rmux.store.engine import Conn


def document(conn: Conn) -> TenantList:
    """Declared tenants in their order, then those that jobs name, then nobody's."""
    from rmux.place import charge
    from rmux.store import jobs, state

    now = state.load(conn)
    placed: Counter[str] = Counter(one.tenant for group in now.groups for one in group.members)
    waiting = Counter(
        job.spec.tenant for job in jobs.ls(conn, states={JobState.PENDING}, limit=None)
    )
    charged, planned = _charged(conn, now), charge.by_tenant(now)
    bill_usd_per_h = charge.bill_usd_per_h(now)
    declared = {tenant.name: tenant for tenant in now.cluster.tenants}
    seen = sorted({*placed, *waiting, *charged} - {*declared, ""})
    nobody = [""] if "" in {*placed, *waiting, *charged} else []
    items = tuple(
        TenantRecord(
            name=name,
            declared=name in declared,
            quota_usd_per_h=declared.get(name, Tenant(name=name)).quota_usd_per_h,
            weight=declared.get(name, Tenant(name=name)).weight,
            placed_jobs=placed[name],
            waiting_jobs=waiting[name],
            usd_per_h=charged.get(name, 0.0),
            planned_usd_per_h=planned.get(name, 0.0),
            share=charged.get(name, 0.0) / bill_usd_per_h if bill_usd_per_h else 0.0,
        )
        for name in (*declared, *seen, *nobody)
    )
    return TenantList(
        items=items, bill_usd_per_h=bill_usd_per_h, policy=policy_part(now.cluster.policy)
    )


def table(seen: TenantList) -> Table:
    return Table(
        (
            "TENANT",
            Column("QUOTA", right=True),
            Column("WEIGHT", right=True),
            Column("PLACED", right=True),
            Column("WAITING", right=True),
            Column("USD/H", right=True),
            Column("SHARE", right=True),
            Column("PLANNED USD/H", right=True, wide=True),
        ),
        [
            (
                item.name or None,
                f"{item.quota_usd_per_h:.2f}" if item.quota_usd_per_h else None,
                f"{item.weight:g}",
                item.placed_jobs,
                item.waiting_jobs,
                f"{item.usd_per_h:.2f}",
                f"{100 * item.share:.1f} %",
                f"{item.planned_usd_per_h:.2f}",
            )
            for item in seen.items
        ],
    )


def _charged(conn: Conn, now: ClusterState) -> dict[str, float]:
    """USD/h by tenant, as each group is charged now."""
    from rmux.place.charge import UNASSIGNED

    found = charges.of_groups(conn, now.groups, now.cluster)
    amounts: dict[str, list[float]] = {}
    for group in now.groups:
        part = found[group.id]
        if not group.members:
            amounts.setdefault(UNASSIGNED, []).append(part.usd_per_h)
        for member in group.members:
            amounts.setdefault(member.tenant, []).append(part.by_job[member.job_id])
    return {name: math.fsum(parts) for name, parts in amounts.items()}
