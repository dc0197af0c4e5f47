"""One look at a group: what it is, what runs where, how fast it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rmux import timeline
from rmux.cli import charges, memory_views
from rmux.cli.charges import Charge
from rmux.cli.documents_groups import GroupDocument
from rmux.cli.memory_views import Measured
from rmux.cli.progress import pace_of
from rmux.clock import SystemClock, boot_id
from rmux.cluster import Cluster, PoolKind
from rmux.events import EventType, PhaseEvent
from rmux.group import CoExecGroup, Member
from rmux.ids import JobId, NodeId
from rmux.job import Job, Phase
from rmux.place.period import period

if TYPE_CHECKING:
    from rmux.store.engine import Conn
    from rmux.store.leases import Lease

WINDOW_S = 600.0
_EVENTS = 6000
_ITERATIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A group at one moment, with its recent events in order."""

    group: CoExecGroup
    cluster: Cluster
    jobs: Mapping[JobId, Job]
    lease: Lease | None
    events: tuple[PhaseEvent, ...]
    seq: int
    now_s: float
    at: datetime
    memory: Mapping[NodeId, Measured]
    """Host memory of what runs for each node, as the controller there is now journaled it last."""
    charge: Charge

    @property
    def status(self) -> str:
        """'up' when a controller serves it, 'down' when it should not run, else 'idle'."""
        if self.lease is not None:
            return "stopping" if self.group.desired == "down" else "up"
        return "down" if self.group.desired == "down" else "idle"

    @property
    def labels(self) -> dict[JobId, str]:
        """A letter per member, in rotation order; further letters for jobs that left."""
        seen = [member.job_id for member in self.group.members]
        seen += [event.job_id for event in self.events if event.job_id is not None]
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
        return {job: letters[n % len(letters)] for n, job in enumerate(dict.fromkeys(seen))}

    @property
    def held(self) -> tuple[timeline.Hold, ...]:
        return timeline.holds(self.events)

    def of_job(self, job_id: JobId) -> list[PhaseEvent]:
        return [event for event in self.events if event.job_id == job_id]


def look(
    conn: Conn,
    group_id: str,
    *,
    window_s: float = WINDOW_S,
    recent: Iterable[PhaseEvent] | None = None,
) -> Look:
    """The group now. `recent` are its latest events in order, read here if not given.

    NotFoundError when there is no such group.
    """
    from rmux.store import events, groups, jobs, leases, pools, requests

    group, cluster = groups.get(conn, group_id), pools.load(conn)
    clock = SystemClock()
    now_s = clock.now_s()
    if recent is None:
        recent = events.latest(conn, group=group_id, limit=_EVENTS)
    lease = leases.live(conn, requests.controller_lease(group_id), now_s=now_s, boot_id=boot_id())
    return Look(
        group=group,
        cluster=cluster,
        jobs={member.job_id: jobs.get(conn, member.job_id) for member in group.members},
        lease=lease,
        events=tuple(event for event in recent if event.at_s >= now_s - window_s),
        seq=events.last_seq(conn, group_id),
        now_s=now_s,
        at=datetime.now(UTC),
        memory={} if lease is None else memory_views.measured(conn, group_id, lease.epoch),
        charge=charges.of_group(conn, group, group.usd_per_h(cluster)),
    )


def document(seen: Look) -> GroupDocument:
    return GroupDocument(**_fields(seen), devices=devices(seen))


def devices(seen: Look) -> list[dict[str, Any]]:
    """Every device of the group: who holds it now, for how long, how busy it was."""
    held = seen.held
    open_holds = {hold.device: hold for hold in held if hold.end_s is None}
    since_s = window_start_s(seen)
    busy = (
        timeline.busy_fraction(held, since_s=since_s, until_s=seen.now_s)
        if since_s < seen.now_s
        else {}
    )
    found = []
    for pool in seen.cluster.pools:
        for node in pool.nodes:
            if node.id not in seen.group.nodes:
                continue
            for device in map(str, node.devices):
                hold = open_holds.get(device)
                found.append(
                    {
                        "device": device,
                        "pool": pool.name,
                        "job": hold.job_id if hold else None,
                        "phase": hold.phase.value if hold else None,
                        "iteration": hold.iteration if hold else None,
                        "since_s": seen.now_s - hold.start_s if hold else None,
                        "busy": busy.get(device, 0.0) if busy else None,
                    }
                )
    return found


def window_start_s(seen: Look) -> float:
    """Where the events begin to tell the whole story, boot-time seconds."""
    return min((event.at_s for event in seen.events), default=seen.now_s)


def pool_of_kind(seen: Look, kind: PoolKind) -> list[str]:
    """Pools of one kind in which the group holds nodes."""
    return [
        pool.name
        for pool in seen.cluster.of_kind(kind)
        if any(node.id in seen.group.nodes for node in pool.nodes)
    ]


def _fields(seen: Look) -> dict[str, Any]:
    group = seen.group
    plan = period(group.members, order=group.round) if group.members else None
    lease = seen.lease
    return {
        "id": group.id,
        "status": seen.status,
        "desired": group.desired,
        "observed_at": seen.at,
        "controller": None if lease is None else {"owner": lease.owner, "epoch": lease.epoch},
        "period_s": None if plan is None else plan.period_s,
        "binding": None if plan is None else f"{plan.binding} {_named(seen, plan.subject)}",
        "usd_per_h": seen.charge.usd_per_h,
        "charged_by": seen.charge.basis,
        "nodes": group.nodes,
        "rotation_version": group.rotation_version,
        "members": [_member(seen, member) for member in group.members],
        "memory": memory_views.node_parts(group, seen.cluster, seen.memory),
    }


def _named(seen: Look, subject: str) -> str:
    """A job by its name; devices and orders as they are."""
    job = seen.jobs.get(JobId(subject))
    return subject if job is None else job.spec.name


def _member(seen: Look, member: Member) -> dict[str, Any]:
    job, own = seen.jobs[member.job_id], seen.of_job(member.job_id)
    pace = pace_of(own)
    seconds = timeline.iteration_seconds(own).get(member.job_id, [])
    return {
        "id": member.job_id,
        "name": member.name,
        "state": member.state.value,
        "iteration": job.iteration,
        "iterations": job.spec.iterations,
        "phase": None if job.phase is None else {"name": job.phase.value, "state": job.phase_state},
        "slo": {"max_slowdown": member.slo},
        "slowdown": {
            "now": pace.slowdown,
            "planned": pace.planned_slowdown(member.solo_s),
            "period_s": pace.period_s,
        },
        "solo_s": member.solo_s,
        "tenant": member.tenant,
        "usd_per_h": seen.charge.by_job[member.job_id],
        "rollout": [str(device) for device in member.placement.rollout],
        "train": [str(device) for device in member.placement.train],
        "last_iterations_s": seconds[-_ITERATIONS:],
        "last_sync_s": _last(own, EventType.PHASE_END, "run_s", phase=Phase.SYNC),
        "last_wait_s": _last(own, EventType.PHASE_START, "wait_s"),
        "last_switch_s": _last(own, EventType.PHASE_START, "switch_s"),
    }


def _last(
    events: Sequence[PhaseEvent], type: EventType, key: str, *, phase: Phase | None = None
) -> float | None:
    for event in reversed(events):
        if event.type is type and phase in (None, event.phase):
            value = event.data.get(key)
            if isinstance(value, int | float):
                return float(value)
    return None
