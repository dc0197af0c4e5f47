"""Pools as documents and rows, and a change of them with what follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmux import units
from rmux.cli.documents_pools import LinkPart, NodePart, PolicyPart, PoolDocument
from rmux.cli.output import Column, Table
from rmux.cluster import Cluster, NodePool, Policy
from rmux.ids import GroupId, IdSource, NodeId

if TYPE_CHECKING:
    from rmux.store.engine import Conn, Store


def change(
    store: Store, write: Callable[[Conn], bool], *, dry_run: bool, ids: IdSource
) -> tuple[bool, int]:
    """(whether anything changed, the revision then); waiting jobs are placed on what came free."""
    from rmux.store import groups

    with store.write(dry_run=dry_run) as conn:
        changed = write(conn)
        revision = groups.revision(conn)
    if changed and not dry_run:
        from rmux.place import service

        service.settle_pending(store, ids=ids)
    return changed, revision


def document(
    cluster: Cluster,
    pool: NodePool,
    held: Mapping[NodeId, GroupId],
    *,
    planned_bytes: Mapping[NodeId, int] | None = None,
) -> PoolDocument:
    """What `rmux.pool/v1` says of a pool."""
    free = [node for node in pool.nodes if not node.drained and node.id not in held]
    return PoolDocument(
        name=pool.name,
        kind=pool.kind.value,
        hardware=pool.hardware,
        usd_per_device_h=pool.usd_per_device_h,
        num_nodes=len(pool.nodes),
        max_nodes=pool.max_nodes,
        num_devices=sum(node.num_devices for node in pool.nodes),
        free_nodes=len(free),
        drained_nodes=sum(bool(node.drained) for node in pool.nodes),
        nodes=tuple(
            NodePart(
                id=node.id,
                host=node.host,
                device_kind=node.device_kind,
                num_devices=node.num_devices,
                cores=node.cores,
                gpu_uuids=node.gpu_uuids,
                host_memory_bytes=node.host_memory_bytes,
                reserved_memory_bytes=node.reserved_memory_bytes,
                planned_bytes=None if planned_bytes is None else planned_bytes.get(node.id, 0),
                drained=node.drained,
                group=held.get(node.id),
            )
            for node in pool.nodes
        ),
        links=tuple(
            LinkPart(source=link.source, target=link.target, rate_bps=link.rate_bps)
            for link in cluster.links
            if pool.name in (link.source, link.target)
        ),
        policy=policy_part(cluster.policy),
    )


def policy_part(policy: Policy) -> PolicyPart:
    return PolicyPart.model_validate(dataclasses.asdict(policy))


def policy_line(cluster: Cluster) -> str:
    """'policy: ageing_s 600; tenants: math, code', of what is not as it is by default."""
    values, usual = dataclasses.asdict(cluster.policy), dataclasses.asdict(Policy())
    told = [f"{key} {value}" for key, value in values.items() if value != usual[key]]
    line = f"policy: {', '.join(told) or 'as by default'}"
    if cluster.tenants:
        line += f"; tenants: {', '.join(tenant.name for tenant in cluster.tenants)}"
    return line


def node_rows(pool: PoolDocument) -> Table:
    """One row per node."""
    return Table(
        (
            "NODE",
            "HOST",
            "DEVICES",
            Column("MEMORY", right=True),
            Column("RESERVED", right=True),
            Column("PLANNED", right=True),
            "GROUP",
            "DRAINED",
            Column("CORES", wide=True),
        ),
        [
            (
                node.id,
                node.host,
                f"{node.num_devices}x{node.device_kind}",
                units.format_bytes(node.host_memory_bytes),
                units.format_bytes(node.reserved_memory_bytes),
                units.format_bytes(node.planned_bytes),
                node.group,
                node.drained or None,
                " ".join(",".join(map(str, cores)) for cores in node.cores) or None,
            )
            for node in pool.nodes
        ],
    )
