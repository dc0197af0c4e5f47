"""Host memory of nodes and jobs for people and programs: what is planned beside what is held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmux import units
from rmux.cli.documents_groups import NodeMemoryPart
from rmux.cluster import Cluster
from rmux.events import EventType, PhaseEvent
from rmux.group import CoExecGroup
from rmux.ids import JobId, NodeId
from rmux.place.residency import job_memory, memory_of

if TYPE_CHECKING:
    from rmux.store.engine import Conn

_MEMORY_EVENTS = 200
_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one node, bytes."""

    resident_bytes: int
    jobs: Mapping[str, int]


def measured(conn: Conn, group_id: str, epoch: int) -> dict[NodeId, Measured]:
    """What each node held when the controller of that epoch journaled it last."""
    from rmux.store import events

    found = events.latest(conn, group=group_id, types=[EventType.MEMORY], limit=_MEMORY_EVENTS)
    return {
        event.node: Measured(
            resident_bytes=int(event.data["resident_bytes"]), jobs=event.data.get("jobs", {})
        )
        for event in found
        if event.node is not None and event.source == f"{group_id}@{epoch}"
    }


def node_parts(
    group: CoExecGroup, cluster: Cluster, seen: Mapping[NodeId, Measured]
) -> list[dict[str, Any]]:
    """Every node of the group that was measured, with each member's part."""
    nodes = [node for node in group.nodes if node in seen]
    return [
        {
            "node": plan.node,
            "resident_bytes": seen[plan.node].resident_bytes,
            "planned_bytes": plan.resident_bytes,
            "switch_bytes": plan.switch_bytes,
            "limit_bytes": plan.limit_bytes,
            "jobs": _job_parts(group, plan.node, seen[plan.node]),
        }
        for plan in memory_of(group.members, cluster, nodes=nodes)
    ]


def _job_parts(group: CoExecGroup, node: NodeId, seen: Measured) -> list[dict[str, Any]]:
    plans = [job_memory(member, node) for member in group.members]
    return [
        {
            "job": plan.job_id,
            "name": plan.name,
            "resident_bytes": seen.jobs.get(plan.job_id),
            "planned_bytes": plan.resident_bytes,
            "switch_peak_bytes": plan.peak_bytes,
        }
        for plan in plans
        if plan.resident_bytes or plan.job_id in seen.jobs
    ]


def node_lines(nodes: Iterable[NodeMemoryPart]) -> Iterator[str]:
    """'memory  t0  3 GiB of 7 GiB, planned 2 GiB: math 2 GiB (plan 1 GiB)'."""
    for node in nodes:
        held, limit = map(units.format_bytes, (node.resident_bytes, node.limit_bytes))
        line = f"memory      {node.node}  {held} of {limit}"
        if node.jobs:
            told = [
                f"{job.name} {units.format_bytes(job.resident_bytes)} "
                f"(plan {units.format_bytes(job.planned_bytes)})"
                for job in node.jobs
            ]
            line += f", planned {units.format_bytes(node.planned_bytes)}: {', '.join(told)}"
        yield line


def planned_bytes(conn: Conn) -> dict[NodeId, int]:
    """What admission has counted on each node that a group holds."""
    from rmux.store import groups

    found: dict[NodeId, int] = {}
    for group in groups.ls(conn):
        for node in group.nodes:
            found[node] = sum(job_memory(member, node).resident_bytes for member in group.members)
    return found


def of_job(conn: Conn, job_id: JobId) -> list[str]:
    """What host memory made of the job lately, one line each."""
    from rmux.store import events

    types = [EventType.MEMORY_PRESSURE, EventType.MEMORY_SHED]
    return [
        f"memory  {_told(event)}"
        for event in events.latest(conn, job=job_id, types=types, limit=_TOLD)
    ]


def _told(event: PhaseEvent) -> str:
    data, size = event.data, units.format_bytes
    if event.type is EventType.MEMORY_SHED:
        failed = f", failed: {data['error']}" if data.get("error") else ""
        return f"gave up {data['what']} on {event.node}: {size(data['freed_bytes'])}{failed}"
    return (
        f"{event.node} short of memory ({data['cause']} at {size(data['used_bytes'])} of "
        f"{size(data['limit_bytes'])}): {data['action']}; it held {size(data['job_bytes'])}, "
        f"its plan is {size(data['planned_bytes'])}"
    )
