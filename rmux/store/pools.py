"""Pools, nodes and links: what hardware there is and what of it is drained."""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa

from rmux.cluster import Cluster, DeviceId, Link, Node, NodePool, Policy, PoolKind, Tenant
from rmux.errors import ConflictError, NotFoundError
from rmux.ids import GroupId, NodeId, PoolName
from rmux.store.documents import from_document
from rmux.store.engine import Conn
from rmux.store.revision import bump
from rmux.store.schema import group_nodes, links, members, nodes, pools, sharing


def save(conn: Conn, cluster: Cluster, *, replace: bool = False) -> bool:
    """Add or redefine the given pools and links; with `replace` drop all others.

    A node keeps its drained reason. Returns whether anything changed. ConflictError when a node
    that would change or go is held by a group, or lies in another pool already.
    """
    before = load(conn)
    after = _merged(before, cluster, replace=replace)
    if after == before:
        return False
    _check_unique(after)
    _check_held(conn, before, after)
    gone = {node.id for node in _nodes(before)} - {node.id for node in _nodes(after)}
    conn.execute(links.delete())
    conn.execute(nodes.delete().where(nodes.c.id.in_(gone)))
    _write(conn, after)
    kept = [pool.name for pool in after.pools]
    conn.execute(pools.delete().where(pools.c.name.not_in(kept)))
    bump(conn)
    return True


def load(conn: Conn) -> Cluster:
    """All pools in the order they were added, drained nodes included."""
    by_pool: dict[str, list[Node]] = {}
    for row in conn.execute(nodes.select().order_by(nodes.c.position)):
        by_pool.setdefault(row.pool, []).append(_node(row))
    return Cluster(
        pools=tuple(
            NodePool(
                name=PoolName(row.name),
                kind=PoolKind(row.kind),
                hardware=row.hardware,
                usd_per_device_h=row.usd_per_device_h,
                nodes=tuple(by_pool.get(row.name, ())),
                max_nodes=row.max_nodes,
            )
            for row in conn.execute(pools.select().order_by(pools.c.position, pools.c.name))
        ),
        links=tuple(
            Link(source=PoolName(row.source), target=PoolName(row.target), rate_bps=row.rate_bps)
            for row in conn.execute(links.select().order_by(links.c.source, links.c.target))
        ),
        **_sharing(conn),
    )


def remove(conn: Conn, name: str) -> None:
    """NotFoundError when there is no such pool, ConflictError when a group holds a node of it."""
    cluster = load(conn)
    gone = cluster.pool(name)
    kept = tuple(pool for pool in cluster.pools if pool is not gone)
    names = {pool.name for pool in kept}
    save(
        conn,
        dataclasses.replace(
            cluster,
            pools=kept,
            links=tuple(link for link in cluster.links if {link.source, link.target} <= names),
        ),
        replace=True,
    )


def set_drained(conn: Conn, node: str, reason: str) -> bool:
    """Keep new jobs off a node; an empty reason lets them on again. Returns whether it changed."""
    row = conn.execute(sa.select(nodes.c.drained).where(nodes.c.id == node)).first()
    if row is None:
        raise NotFoundError(f"no node {node!r}", hint="rmux pool ls -o wide")
    if row.drained == reason:
        return False
    conn.execute(nodes.update().where(nodes.c.id == node).values(drained=reason))
    bump(conn)
    return True


def holders(conn: Conn) -> dict[NodeId, GroupId]:
    """Which group holds each node that is held."""
    rows = conn.execute(sa.select(group_nodes.c.node_id, group_nodes.c.group_id))
    return {NodeId(row.node_id): GroupId(row.group_id) for row in rows}


def _merged(before: Cluster, new: Cluster, *, replace: bool) -> Cluster:
    drained = {node.id: node.drained for node in _nodes(before)}
    fresh = {pool.name: _with_drained(pool, drained) for pool in new.pools}
    if replace:
        return dataclasses.replace(new, pools=tuple(fresh.values()), links=_sorted(new.links))
    kept = [fresh.pop(pool.name, pool) for pool in before.pools]
    ends = {frozenset((link.source, link.target)) for link in new.links}
    old = [link for link in before.links if frozenset((link.source, link.target)) not in ends]
    tenants = {tenant.name: tenant for tenant in (*before.tenants, *new.tenants)}
    return Cluster(
        pools=(*kept, *fresh.values()),
        links=_sorted((*old, *new.links)),
        tenants=tuple(tenants.values()),
        # A file that says nothing of it leaves it.
        policy=before.policy if new.policy == Policy() else new.policy,
    )


def _sorted(found: tuple[Link, ...]) -> tuple[Link, ...]:
    return tuple(sorted(found, key=lambda link: (link.source, link.target)))


def _with_drained(pool: NodePool, drained: dict[NodeId, str]) -> NodePool:
    return dataclasses.replace(
        pool,
        nodes=tuple(
            dataclasses.replace(node, drained=node.drained or drained.get(node.id, ""))
            for node in pool.nodes
        ),
    )


def _check_unique(cluster: Cluster) -> None:
    seen: dict[NodeId, PoolName] = {}
    for pool in cluster.pools:
        for node in pool.nodes:
            if node.id in seen:
                raise ConflictError(
                    f"node {node.id} is in pool {seen[node.id]} and in pool {pool.name}",
                    code="pool.node-twice",
                )
            seen[node.id] = pool.name


def _check_held(conn: Conn, before: Cluster, after: Cluster) -> None:
    now = {node.id: (pool.kind, pool.hardware, node) for pool in after.pools for node in pool.nodes}
    held = holders(conn)
    for pool in before.pools:
        for node in pool.nodes:
            entry = (pool.kind, pool.hardware, node)
            if node.id in held and now.get(node.id) != entry:
                change = "change" if node.id in now else "go"
                raise ConflictError(
                    f"node {node.id} would {change}, but group {held[node.id]} holds it",
                    code="pool.held",
                    hint=f"rmux pool drain {node.id}, then wait for its jobs to end, or "
                    f"rmux job cancel {' '.join(_jobs_on(conn, node.id))}",
                    details={"node": node.id, "group": held[node.id]},
                )


def _jobs_on(conn: Conn, node: NodeId) -> list[str]:
    rows = conn.execute(
        sa.select(members.c.job_id, members.c.rollout, members.c.train).order_by(members.c.position)
    )
    return [
        row.job_id
        for row in rows
        if any(DeviceId.parse(text).node == node for text in (*row.rollout, *row.train))
    ]


def _write(conn: Conn, cluster: Cluster) -> None:
    known_pools = set(conn.execute(sa.select(pools.c.name)).scalars())
    known_nodes = set(conn.execute(sa.select(nodes.c.id)).scalars())
    position = 0
    for rank, pool in enumerate(cluster.pools):
        values: dict[str, Any] = {
            "position": rank,
            "kind": pool.kind.value,
            "hardware": pool.hardware,
            "usd_per_device_h": pool.usd_per_device_h,
            "max_nodes": pool.max_nodes,
        }
        if pool.name in known_pools:
            conn.execute(pools.update().where(pools.c.name == pool.name).values(values))
        else:
            conn.execute(pools.insert().values(name=pool.name, **values))
        for node in pool.nodes:
            position += 1
            row = node_row(node, position)
            if node.id in known_nodes:
                conn.execute(nodes.update().where(nodes.c.id == node.id).values(row))
            else:
                conn.execute(nodes.insert().values(id=node.id, **row))
    for link in cluster.links:
        conn.execute(links.insert().values(dataclasses.asdict(link)))
    conn.execute(sharing.delete())
    conn.execute(
        sharing.insert().values(
            id=1,
            policy=dataclasses.asdict(cluster.policy),
            tenants=[dataclasses.asdict(tenant) for tenant in cluster.tenants],
        )
    )


def _sharing(conn: Conn) -> dict[str, Any]:
    row = conn.execute(sharing.select()).first()
    if row is None:
        return {}
    return {
        "policy": from_document(Policy, row.policy),
        "tenants": tuple(from_document(Tenant, one) for one in row.tenants),
    }


def node_row(node: Node, position: int) -> dict[str, Any]:
    """The columns of a node but its id."""
    return {
        "pool": node.pool,
        "position": position,
        "host": node.host,
        "device_kind": node.device_kind,
        "num_devices": node.num_devices,
        "cores": node.cores,
        "gpu_uuids": node.gpu_uuids,
        "host_memory_bytes": node.host_memory_bytes,
        "reserved_memory_bytes": node.reserved_memory_bytes,
        "drained": node.drained,
    }


def _node(row: Any) -> Node:
    return Node(
        id=NodeId(row.id),
        pool=PoolName(row.pool),
        host=row.host,
        device_kind=row.device_kind,
        num_devices=row.num_devices,
        cores=tuple(tuple(cores) for cores in row.cores),
        gpu_uuids=tuple(row.gpu_uuids),
        host_memory_bytes=row.host_memory_bytes,
        reserved_memory_bytes=row.reserved_memory_bytes,
        drained=row.drained,
    )


def _nodes(cluster: Cluster) -> tuple[Node, ...]:
    return tuple(node for pool in cluster.pools for node in pool.nodes)
