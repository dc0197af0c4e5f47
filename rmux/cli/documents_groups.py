"""JSON documents about groups and what happens in them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rmux.cli.documents import Document, Instant, Part, Record, named
from rmux.cli.documents_jobs import PhasePart, SloPart, SlowdownPart


class MemberPart(Part):
    id: str
    name: str
    state: str
    iteration: int
    iterations: int
    phase: PhasePart | None
    slo: SloPart
    slowdown: SlowdownPart
    solo_s: float
    """Planned period alone, seconds."""
    tenant: str
    """Empty for nobody's."""
    usd_per_h: float
    """What it is charged of the group's price; all members' add up to it."""
    rollout: tuple[str, ...]
    train: tuple[str, ...]
    last_iterations_s: tuple[float, ...]
    last_sync_s: float | None
    last_wait_s: float | None
    last_switch_s: float | None


class DevicePart(Part):
    device: str
    pool: str
    job: str | None
    phase: str | None
    iteration: int | None
    since_s: float | None
    """How long the device has been held, seconds."""
    busy: float | None
    """Share of the window that it was held, 0..1."""


class JobMemoryPart(Part):
    job: str
    name: str
    resident_bytes: int | None
    """Measured; None while it is not known whose is what."""
    planned_bytes: int
    """Parked, as admission counts it."""
    switch_peak_bytes: int


class NodeMemoryPart(Part):
    node: str
    resident_bytes: int
    """Of what runs for the node: its runner, its devices' processes, the drivers at home there."""
    planned_bytes: int
    """Of all members, parked."""
    switch_bytes: int
    """Planned on top: the most that parks and wakes take at once."""
    limit_bytes: int
    """What the node offers to jobs."""
    jobs: tuple[JobMemoryPart, ...]


class ControllerPart(Part):
    owner: str
    epoch: int


class GroupDocument(Document):
    """A group: its plan, its members, its devices now.

    `status`: up, stopping, down, or idle (wanted, but nobody serves it).
    """

    schema_: Literal["rmux.group/v1"] = named("rmux.group/v1")
    id: str
    status: str
    desired: str
    observed_at: Instant
    controller: ControllerPart | None
    period_s: float | None
    """Planned, seconds."""
    binding: str | None
    """What the period is bound by."""
    usd_per_h: float
    charged_by: str
    """'measured': device-seconds held lately; 'planned' until every member has held some."""
    nodes: tuple[str, ...]
    rotation_version: int
    members: tuple[MemberPart, ...]
    devices: tuple[DevicePart, ...]
    memory: tuple[NodeMemoryPart, ...]
    """Of the nodes that were measured since the controller came up."""


class GroupList(Document):
    schema_: Literal["rmux.group_list/v1"] = named("rmux.group_list/v1")
    items: tuple[GroupDocument, ...]


class GroupDown(Document):
    """What `group down` came to."""

    schema_: Literal["rmux.group_down/v1"] = named("rmux.group_down/v1")
    id: str
    changed: bool
    status: str
    dry_run: bool


class RehearsedPart(Part):
    id: str
    name: str
    solo_s: float
    """Planned period alone, seconds."""
    period_s: float | None
    """Median of the counted rounds, seconds."""
    planned_slowdown: float | None
    slowdown: float | None
    """`period_s` ÷ `solo_s`."""
    max_slowdown: float
    error: str
    """Why it failed; empty when it did not."""


class RehearsalDocument(Document):
    """What `group up --emulate` came to: the plan, and what emulated engines made of it."""

    schema_: Literal["rmux.rehearsal/v1"] = named("rmux.rehearsal/v1")
    id: str
    rounds: int
    """Counted; a few more were run first."""
    planned_period_s: float
    period_s: float | None
    members: tuple[RehearsedPart, ...]
    events: int
    problems: tuple[str, ...]
    """Of the trace; empty when it is sound."""


class Timeline(Document):
    """Who held which device when, as holds and as text lanes."""

    schema_: Literal["rmux.timeline/v1"] = named("rmux.timeline/v1")
    group: str
    since_s: float
    until_s: float
    labels: dict[str, str]
    lanes: dict[str, str]
    busy: dict[str, float]


class EventRecord(Record):
    """One line of a watch: an event of the journal, or what the watch itself has to say.

    The watch's own types are snapshot (first; `data` is a rmux.group/v1), heartbeat (nothing
    happened for a while), gap (the store could not be read; events go on from `seq`), end (last).
    """

    schema_: Literal["rmux.event/v1"] = named("rmux.event/v1")
    seq: int
    type: str
    at: Instant
    at_s: float
    """Boot-time clock of the host where it happened, seconds."""
    source: str
    source_n: int
    group_id: str | None
    job_id: str | None = None
    iteration: int | None = None
    phase: str | None = None
    node: str | None = None
    device: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    reason: str | None = None
    """Of a gap or an end."""
    exit_code: int | None = None
    """Of an end."""


class TraceCheck(Document):
    """What `trace check` found: an empty list of problems means a sound trace."""

    schema_: Literal["rmux.trace_check/v1"] = named("rmux.trace_check/v1")
    source: str
    events: int
    ok: bool
    problems: tuple[str, ...]
