"""Co-execution groups: who shares which nodes, and what is wanted of the group."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from rmux.cluster import DeviceId, Node
from rmux.errors import ConflictError, NotFoundError
from rmux.estimate import JobProfile
from rmux.group import (
    Assignment,
    CoExecGroup,
    Member,
    Placement,
    fitted_profile,
)
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import JobState
from rmux.store import jobs as stored_jobs
from rmux.store import revision as stored_revision
from rmux.store.documents import from_document
from rmux.store.engine import Conn
from rmux.store.pools import node_row
from rmux.store.schema import group_nodes, groups, jobs, members, nodes, pools, profiles


def revision(conn: Conn) -> int:
    """Counts changes of pools, groups, placements and pending jobs."""
    return stored_revision.current(conn)


def fingerprint(conn: Conn, group_id: GroupId) -> tuple[Any, ...]:
    """Changes when the group's members, nodes or what is wanted of any of them change.

    One cheap read for those who follow a group, instead of the whole of it.
    """
    wanted = conn.execute(sa.select(groups.c.desired).where(groups.c.id == group_id)).scalar()
    rows = conn.execute(
        sa.select(jobs.c.id, jobs.c.state, jobs.c.desired, jobs.c.attempt)
        .where(jobs.c.group_id == group_id)
        .order_by(jobs.c.id)
    )
    return (revision(conn), wanted, tuple(map(tuple, rows)))


def apply(
    conn: Conn, assignment: Assignment, *, expected_revision: int, group_id: GroupId
) -> GroupId:
    """Put a job where a decision says; `group_id` names the group if the decision makes a new one.

    Returns the group's id; the job is placed afterwards. ConflictError `store.stale` when the
    store is not at the revision the decision was made from, `group.held` when a node is taken.
    """
    stored_revision.bump(conn, expected=expected_revision)
    job = stored_jobs.get(conn, assignment.job_id)
    if job.profile_id is None:
        raise ConflictError(f"job {job.id} has no profile to be placed by", code="group.no-profile")
    target = assignment.group_id or group_id
    _raise_rotation(conn, target, create=assignment.group_id is None)
    _remove_nodes(conn, target, assignment.removed_nodes)
    _gain_nodes(conn, assignment.new_nodes)
    _add_nodes(conn, target, assignment.added_nodes)
    conn.execute(members.delete().where(members.c.job_id == job.id))
    conn.execute(
        members.insert().values(
            job_id=job.id,
            group_id=target,
            rollout=[str(device) for device in assignment.placement.rollout],
            train=[str(device) for device in assignment.placement.train],
        )
    )
    if assignment.turns:
        conn.execute(
            groups.update().where(groups.c.id == target).values(turns=list(assignment.turns))
        )
    _check_owned(conn, target)
    stored_jobs.set_state(conn, job.id, JobState.PLACED)
    stored_jobs.update(conn, job.id, group_id=target)
    if job.group_id is not None and job.group_id != target:
        _free_unused(conn, job.group_id)
    return target


def remove_member(conn: Conn, job_id: str) -> GroupId | None:
    """Take a job out of its group and free the nodes that no other member is placed on.

    The group itself stays on record, and so does the job's own note of which group it was in.
    Returns the group it left; None when it was in none, and then nothing changes.
    """
    row = conn.execute(sa.select(members.c.group_id).where(members.c.job_id == job_id)).first()
    if row is None:
        return None
    conn.execute(members.delete().where(members.c.job_id == job_id))
    _raise_rotation(conn, row.group_id, create=False)
    _free_unused(conn, row.group_id)
    stored_revision.bump(conn)
    return GroupId(row.group_id)


def get(conn: Conn, group_id: str) -> CoExecGroup:
    """NotFoundError when there is no such group; one that emptied has no members and no nodes."""
    found = _load(conn, groups.c.id == group_id)
    if not found:
        raise NotFoundError(f"no group {group_id!r}", hint="rmux group ls")
    return found[0]


def resolve(conn: Conn, text: str) -> GroupId:
    """The id that a person means: a full id, a prefix, or the name or id of a job in the group."""
    if conn.execute(sa.select(groups.c.id).where(groups.c.id == text)).first() is not None:
        return GroupId(text)
    try:
        return GroupId(stored_jobs.resolve_prefix(conn, groups.c.id, text, noun="group"))
    except NotFoundError as error:
        job = _job_meant(conn, text)
        if job is None:
            raise error
        return job


def ls(conn: Conn, *, all: bool = False) -> list[CoExecGroup]:
    """Groups that have a member or hold a node, oldest first; `all` includes emptied ones."""
    found = _load(conn, sa.true())
    return found if all else [group for group in found if group.members or group.nodes]


def set_desired(conn: Conn, group_id: str, desired: str) -> bool:
    """'run' or 'down'. Returns whether it changed."""
    group = get(conn, group_id)
    if group.desired == desired:
        return False
    conn.execute(groups.update().where(groups.c.id == group_id).values(desired=desired))
    return True


def _job_meant(conn: Conn, text: str) -> GroupId | None:
    try:
        return stored_jobs.get(conn, stored_jobs.resolve(conn, text)).group_id
    except NotFoundError:
        return None


def _load(conn: Conn, which: sa.ColumnElement[bool]) -> list[CoExecGroup]:
    nodes: dict[str, list[NodeId]] = {}
    for row in conn.execute(
        group_nodes.select()
        .join(groups, groups.c.id == group_nodes.c.group_id)
        .where(which)
        .order_by(group_nodes.c.position, group_nodes.c.node_id)
    ):
        nodes.setdefault(row.group_id, []).append(NodeId(row.node_id))
    joined: dict[str, list[Member]] = {}
    for row in conn.execute(_member_query(which)):
        joined.setdefault(row.group_id, []).append(_member(row))
    return [
        CoExecGroup(
            id=GroupId(row.id),
            members=tuple(joined.get(row.id, ())),
            nodes=tuple(nodes.get(row.id, ())),
            rotation_version=row.rotation_version,
            desired=row.desired,
            turns=tuple(JobId(job) for job in row.turns),
        )
        for row in conn.execute(
            groups.select().where(which).order_by(groups.c.created_at, groups.c.id)
        )
    ]


def _member_query(which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(
            members.c.group_id,
            members.c.job_id,
            members.c.rollout,
            members.c.train,
            jobs.c.name,
            jobs.c.state,
            sa.func.coalesce(jobs.c.spec["slo"].as_float(), 2.0).label("slo"),
            sa.func.coalesce(jobs.c.spec["train"]["devices"].as_integer(), 1).label("asked"),
            jobs.c.spec["train"]["mini_batch"].as_integer().label("mini_batch"),
            jobs.c.spec["train"]["micro_batch"].as_integer().label("micro_batch"),
            sa.func.coalesce(jobs.c.spec["max_staleness"].as_integer(), 0).label("max_staleness"),
            sa.func.coalesce(jobs.c.spec["max_repeats"].as_integer(), 1).label("max_repeats"),
            sa.func.coalesce(jobs.c.spec["tenant"].as_string(), "").label("tenant"),
            sa.func.coalesce(jobs.c.spec["priority"].as_integer(), 0).label("priority"),
            sa.func.coalesce(jobs.c.spec["movable"].as_boolean(), sa.true()).label("movable"),
            profiles.c.document,
        )
        .join(groups, groups.c.id == members.c.group_id)
        .join(jobs, jobs.c.id == members.c.job_id)
        .join(profiles, profiles.c.id == jobs.c.profile_id)
        .where(which, jobs.c.state.not_in(stored_jobs.TERMINAL))
        .order_by(members.c.position)
    )


def _member(row: Any) -> Member:
    profile = from_document(JobProfile, row.document)
    train = tuple(DeviceId.parse(text) for text in row.train)
    fitted = fitted_profile(profile, asked=row.asked, train=train)
    return Member(
        job_id=JobId(row.job_id),
        name=row.name,
        slo=float(row.slo),
        profile=fitted,
        placement=Placement(
            rollout=tuple(DeviceId.parse(text) for text in row.rollout), train=train
        ),
        state=JobState(row.state),
        max_staleness=row.max_staleness,
        max_repeats=row.max_repeats,
        tenant=row.tenant,
        priority=row.priority,
        movable=bool(row.movable),
        asked_train_devices=0 if fitted is profile else row.asked,
        asked_profile=None if fitted is profile else profile,
        batches=None if row.mini_batch is None else (row.mini_batch, row.micro_batch or 1),
    )


def _raise_rotation(conn: Conn, group_id: str, *, create: bool) -> None:
    if create:
        conn.execute(
            groups.insert().values(
                id=group_id, desired="run", rotation_version=1, created_at=datetime.now(UTC)
            )
        )
        return
    changed = conn.execute(
        groups.update()
        .where(groups.c.id == group_id)
        .values(rotation_version=groups.c.rotation_version + 1)
    )
    if changed.rowcount == 0:
        raise NotFoundError(f"no group {group_id!r}", hint="rmux group ls")


def _gain_nodes(conn: Conn, gained: Iterable[Node]) -> None:
    """Nodes of elastic pools; they stay when no group holds them any more."""
    for node in gained:
        last = conn.execute(sa.select(sa.func.max(nodes.c.position))).scalar()
        limit, listed = conn.execute(
            sa.select(pools.c.max_nodes, sa.func.count(nodes.c.id))
            .outerjoin(nodes, nodes.c.pool == pools.c.name)
            .where(pools.c.name == node.pool)
            .group_by(pools.c.name, pools.c.max_nodes)
        ).one()
        if listed >= limit:
            raise ConflictError(
                f"pool {node.pool} has {listed} nodes and may grow to {limit}",
                code="pool.full",
                details={"pool": node.pool},
            )
        conn.execute(nodes.insert().values(id=node.id, **node_row(node, 1 + (last or 0))))


def _add_nodes(conn: Conn, group_id: str, added: Iterable[NodeId]) -> None:
    last = conn.execute(
        sa.select(sa.func.max(group_nodes.c.position)).where(group_nodes.c.group_id == group_id)
    ).scalar()
    for position, node in enumerate(added, start=1 + (last or 0)):
        try:
            conn.execute(
                group_nodes.insert().values(node_id=node, group_id=group_id, position=position)
            )
        except IntegrityError as error:
            raise ConflictError(
                f"node {node} cannot join group {group_id}: it is held by another or gone",
                code="group.held",
                details={"node": node},
            ) from error


def _remove_nodes(conn: Conn, group_id: str, removed: Iterable[NodeId]) -> None:
    for node in removed:
        conn.execute(
            group_nodes.delete().where(
                group_nodes.c.node_id == node, group_nodes.c.group_id == group_id
            )
        )


def _check_owned(conn: Conn, group_id: str) -> None:
    held = _held(conn, group_id)
    for device in _placed_devices(conn, group_id):
        if device.node not in held:
            raise ConflictError(
                f"device {device} is not on a node of group {group_id}", code="group.not-held"
            )


def _free_unused(conn: Conn, group_id: str) -> None:
    used = {device.node for device in _placed_devices(conn, group_id)}
    _remove_nodes(conn, group_id, _held(conn, group_id) - used)


def _placed_devices(conn: Conn, group_id: str) -> list[DeviceId]:
    placed = conn.execute(
        sa.select(members.c.rollout, members.c.train)
        .where(members.c.group_id == group_id)
        .order_by(members.c.position)
    )
    return [DeviceId.parse(text) for row in placed for text in (*row.rollout, *row.train)]


def _held(conn: Conn, group_id: str) -> set[NodeId]:
    rows = conn.execute(sa.select(group_nodes.c.node_id).where(group_nodes.c.group_id == group_id))
    return {NodeId(node) for node in rows.scalars()}
