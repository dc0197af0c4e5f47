"""Stores in which one settle pass has much to write, and what stands in a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from rmux.cluster import Cluster, DeviceId, Node, NodePool, Policy, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.events import EventType, PhaseEvent
from rmux.group import Assignment, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import Job, JobSpec, JobState, Phase
from rmux.store import events, groups, jobs, pools, profiles
from rmux.store.engine import Store
from rmux.store.schema import metadata

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(count: int = 3, **policy: Any) -> Cluster:
    """Nodes r0 …, t0 … of one device each, 1 and 4 USD/h."""
    made = []
    for kind, price in ((PoolKind.ROLLOUT, 1.0), (PoolKind.TRAIN, 4.0)):
        nodes = tuple(
            Node(
                id=NodeId(f"{kind[0]}{index}"),
                pool=PoolName(str(kind)),
                host="here",
                device_kind="cpu",
                num_devices=1,
                host_memory_bytes=1000,
            )
            for index in range(count)
        )
        made.append(
            NodePool(
                name=PoolName(str(kind)),
                kind=kind,
                hardware="cpu",
                usd_per_device_h=price,
                nodes=nodes,
            )
        )
    return Cluster(pools=tuple(made), policy=Policy(**policy))


def profile(name: str, rollout_s: float, train_s: float) -> JobProfile:
    return JobProfile(
        id=ProfileId(f"p-{name}"),
        spec_hash="x3:0",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="cpu",
        train_hardware="cpu",
        rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s),
        train=PhaseEstimate(worst_s=train_s, expected_s=train_s),
        sync_s=0.0,
        sync_bytes=0,
        rollout_resident_bytes=10,
        train_resident_bytes=10,
        created_at=EPOCH,
    )


def add(
    store: Store,
    name: str,
    times: tuple[float, float],
    *,
    group: str | None = None,
    on: tuple[str, str] | None = None,
    state: JobState = JobState.PLACED,
    slo: float = 2.0,
) -> JobId:
    """A job on these two nodes, which its group gains when nobody is on them; or one that waits."""
    planned = profile(name, *times)
    job_id = JobId(f"j-{name}")
    with store.write() as conn:
        profiles.save(conn, planned)
        jobs.insert(
            conn,
            Job(
                id=job_id,
                spec=JobSpec(name=name, slo=slo),
                spec_hash="x3:0",
                state=JobState.PENDING,
                created_at=EPOCH,
                profile_id=planned.id,
            ),
        )
        if on is None or group is None:
            return job_id
        nodes = tuple(map(NodeId, on))
        known = {found.id: found.nodes for found in groups.ls(conn)}
        groups.apply(
            conn,
            Assignment(
                job_id=job_id,
                group_id=GroupId(group) if GroupId(group) in known else None,
                placement=Placement(
                    rollout=(DeviceId(nodes[0], 0),), train=(DeviceId(nodes[1], 0),)
                ),
                added_nodes=tuple(n for n in nodes if n not in known.get(GroupId(group), ())),
            ),
            expected_revision=groups.revision(conn),
            group_id=GroupId(group),
        )
        if state is not JobState.PLACED:
            jobs.set_state(conn, job_id, state)
    return job_id


def with_moves(store: Store) -> None:
    """One job waits, and two that have not started would save money in one group."""
    with store.write() as conn:
        pools.save(conn, cluster(rebalance=True))
    add(store, "a", (50, 50), group="g-a", on=("r0", "t0"))
    add(store, "c", (50, 50), group="g-c", on=("r1", "t1"))
    add(store, "late", (90, 30), slo=1.0)


def with_drift(store: Store) -> None:
    """Job b runs and takes 40 s where 20 s are planned; its co-runner accepts 50 s a round."""
    with store.write() as conn:
        pools.save(conn, cluster(drift_quantile=0.9))
    for name in ("a", "b"):
        add(store, name, (20, 5), group="g-a", on=("r0", "t0"), state=JobState.RUNNING)
    add(store, "late", (9, 9), slo=1.0)
    phases(store, "b", rollout_s=40, train_s=5)


def phases(
    store: Store, name: str, *, rollout_s: float, train_s: float, start: int = 0, group: str = "g-a"
) -> None:
    """Eight iterations of a job in the journal."""
    found = []
    for iteration in range(start, start + 8):
        for number, (phase, run_s) in enumerate(
            ((Phase.ROLLOUT, rollout_s), (Phase.TRAIN, train_s))
        ):
            found.append(
                PhaseEvent(
                    type=EventType.PHASE_END,
                    at=EPOCH + timedelta(seconds=60 * iteration),
                    at_s=60.0 * iteration,
                    source=f"j-{name}/1",
                    source_n=2 * iteration + number + 1,
                    group_id=GroupId(group),
                    job_id=JobId(f"j-{name}"),
                    iteration=iteration,
                    phase=phase,
                    data={"run_s": run_s, "attempt": 1},
                )
            )
    with store.write() as conn:
        events.append(conn, found)


def contents(store: Store) -> dict[str, list[str]]:
    """Every row of every table."""
    with store.read() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(table.select()))
            for table in metadata.sorted_tables
        }


def layout(store: Store) -> dict[str, tuple[str | None, str, frozenset[str]]]:
    """Of each job: its group's members by name, its state, its nodes."""
    with store.read() as conn:
        found = {
            member.name: (
                ",".join(sorted(one.name for one in group.members)),
                str(member.state),
                frozenset(map(str, member.placement.devices)),
            )
            for group in groups.ls(conn)
            for member in group.members
        }
        waiting = {job.spec.name: (None, str(job.state), frozenset()) for job in jobs.ls(conn)}
    return {**waiting, **found}


@contextmanager
def on_write(store: Store, number: int, act: Any) -> Iterator[list[int]]:
    """Calls `act` after the `number`-th statement that changes rows; counts them all."""
    seen = [0]

    def after(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
            seen[0] += 1
            if seen[0] == number:
                act()

    sa.event.listen(store.engine, "after_cursor_execute", after)
    try:
        yield seen
    finally:
        sa.event.remove(store.engine, "after_cursor_execute", after)
