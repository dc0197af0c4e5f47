"""What happens, one record each: the same from a live run, an emulated one and the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from rmux.clock import to_rfc3339
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Phase


class EventType(StrEnum):
    GRANT = "grant"
    """The controller gave a device to a phase: data {epoch, seq, attempt}."""
    PHASE_START = "phase.start"
    """The user's function begins: data {epoch, seq, attempt, wait_s, switch_s, overhead_s}."""
    PHASE_END = "phase.end"
    """The user's function ended: data {attempt, run_s, park_s, overhead_s, …metrics}."""
    RELEASED = "released"
    """The gate proved the device idle: data {epoch, seq, attempt, proof_s}."""
    ITERATION_END = "iteration.end"
    """Checkpoint and synced version agree: data {attempt, reward, weight_version, …}."""
    CHECKPOINT = "checkpoint"
    PROGRESS = "progress"
    JOB_STATE = "job.state"
    """data {state, reason, error, attempt}."""
    PROCESS = "process"
    """A process of the group started, died or was replaced: data {role, pid, change, …}."""
    CONTROLLER = "controller"
    """A controller took the group: data {epoch}."""
    SLO_RISK = "slo.risk"
    GATE_REFUSED = "gate.refused"
    CHANNEL = "channel"
    """The channel was emptied, lost or came back."""
    MEMORY = "memory"
    DEVICE_JOINED = "device.joined"
    """A rollout under way goes on on one device more: data {epoch, seq, attempt, wait_s, …}."""
    DEVICE_LEFT = "device.left"
    """A rollout under way gave a device back: data {epoch, seq, attempt, park_s}."""
    TAIL_MOVED = "tail.moved"
    """The last responses of a rollout go on together: data {reason, freed, kept, requests, …}."""
    """Host memory of a node changed: data {resident_bytes, jobs: {job: bytes}}."""
    MEMORY_PRESSURE = "memory.pressure"
    """A node runs short of host memory: data {action, cause, used_bytes, limit_bytes, …}; the job
    is the one that is to give some up."""
    MEMORY_SHED = "memory.shed"
    """A job gave host memory up: data {what, freed_bytes, seconds, error, attempt}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent:
    """`seq` is given by the store. (source, source_n) names the record at its origin, so that one
    announced twice is stored once. Instants are UTC; `at_s` is the host's boot-time clock, seconds.
    """

    type: EventType
    at: datetime
    at_s: float
    source: str
    source_n: int
    group_id: GroupId | None = None
    job_id: JobId | None = None
    iteration: int | None = None
    phase: Phase | None = None
    node: NodeId | None = None
    device: str | None = None
    """'node/index'."""
    data: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0


def to_document(event: PhaseEvent) -> dict[str, Any]:
    """The event as JSON values, `at` in RFC 3339: what reports carry and JSON output prints."""
    document = {f.name: getattr(event, f.name) for f in fields(event)}
    return {**document, "at": to_rfc3339(event.at), "data": dict(event.data)}


def from_document(document: Mapping[str, Any]) -> PhaseEvent:
    """The event of `to_document`. ValueError, KeyError or TypeError for what is not one; unknown
    keys are ignored."""
    known = {f.name: document[f.name] for f in fields(PhaseEvent) if f.name in document}
    phase = known.get("phase")
    known["type"] = EventType(known["type"])
    known["phase"] = None if phase is None else Phase(phase)
    known["at"] = datetime.fromisoformat(known["at"])
    return PhaseEvent(**known)
