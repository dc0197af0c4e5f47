"""The cheapest division of the jobs of a phase-level trace into new groups, as an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmux.cluster import Cluster, DeviceId, NodePool, PoolKind
from rmux.group import ClusterState, CoExecGroup, Member, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.place.index import Index
from rmux.place.nodes_needed import Item, on_fewest_nodes
from rmux.place.packing import Column, Prices, pack, shared_limit_s
from rmux.place.period import best_round
from rmux.place.sim.world import World


def divided(cluster: Cluster, members: Sequence[Member], *, world: World) -> Index | None:
    """Every member in a group of the exact cheapest division, at the train degree it has. None
    where there are too many feasible groups to list them, or fixed pools are too small.

    Members are of whole nodes, one device each, as those of a replay are.
    """
    by_job = {member.job_id: member for member in members}
    items = {member.job_id: _item(member) for member in members}
    policy = cluster.policy
    prices = Prices(
        rollout_usd_per_h=world.rollout_usd_per_node_h,
        train_usd_per_h=world.train_usd_per_node_h,
        host_memory_bytes=world.host_memory_bytes,
    )
    packing = pack(items.values(), prices, max_members=policy.max_members, margin=policy.margin)
    if not packing.columns:
        return None
    rollout, train = cluster.of_kind(PoolKind.ROLLOUT)[0], cluster.of_kind(PoolKind.TRAIN)[0]
    needs = (
        (rollout, sum(column.rollout_nodes for column in packing.columns)),
        (train, sum(column.train_nodes for column in packing.columns)),
    )
    pools = [_grown(pool, count) for pool, count in needs]
    if any(len(pool.nodes) < count for pool, (_, count) in zip(pools, needs, strict=True)):
        return None
    free = [[node.id for node in pool.nodes] for pool in pools]
    groups = []
    for number, column in enumerate(packing.columns):
        nodes = [free[0].pop(0) for _ in range(column.rollout_nodes)]
        trains = [free[1].pop(0) for _ in range(column.train_nodes)]
        members_here = [by_job[job] for job in column.jobs]
        groups.append(
            _group(
                number,
                column,
                members_here,
                [items[job] for job in column.jobs],
                nodes=nodes,
                trains=trains,
                margin=policy.margin,
                memory_bytes=world.host_memory_bytes,
            )
        )
    others = tuple(pool for pool in cluster.pools if pool not in (rollout, train))
    grown = replace(cluster, pools=(*pools, *others))
    return Index.of(ClusterState(revision=0, cluster=grown, groups=tuple(groups)))


def _item(member: Member) -> Item:
    here = replace(member, asked_profile=None, asked_train_devices=0, batches=None)
    return Item.of_member(here)


def _group(
    number: int,
    column: Column,
    members: Sequence[Member],
    items: Sequence[Item],
    *,
    nodes: Sequence[NodeId],
    trains: Sequence[NodeId],
    margin: float,
    memory_bytes: int,
) -> CoExecGroup:
    limit_s = shared_limit_s(items, margin=margin)
    found = on_fewest_nodes(items, limit_s, memory_bytes=memory_bytes)
    assert found is not None, "a column is feasible"
    train = tuple(DeviceId(node, 0) for node in trains)
    placed = tuple(
        replace(
            member,
            placement=Placement(
                rollout=tuple(DeviceId(nodes[place], 0) for place in found[member.job_id]),
                train=train,
            ),
        )
        for member in members
    )
    turns: tuple[JobId, ...] = best_round([item.loop(found[item.job_id]) for item in items]).order
    return CoExecGroup(
        id=GroupId(f"packed-{number}"),
        members=placed,
        nodes=(*nodes, *trains),
        turns=turns,
    )


def _grown(pool: NodePool, count: int) -> NodePool:
    """With so many nodes listed, where it may grow to that."""
    listed, last = list(pool.nodes), pool.nodes[-1]
    taken = {node.id for node in listed}
    number = 0
    while len(listed) < min(count, pool.max_nodes):
        name = NodeId(f"{pool.kind[0]}{number}")
        number += 1
        if name not in taken:
            listed.append(replace(last, id=name, host=str(name)))
    return replace(pool, nodes=tuple(listed))
