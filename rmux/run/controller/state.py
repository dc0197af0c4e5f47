"""What a controller knows, hears and orders: plain frozen values, so that `step` is a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rmux.cluster import DeviceId
from rmux.events import PhaseEvent
from rmux.group import Member, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Job, JobState, Reason
from rmux.place.latest import Latest
from rmux.place.rotation import Rotation
from rmux.run.messages import DriverStatus, Grant, Grants, NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the controller waits, seconds."""

    heartbeat_s: float = 0.5
    gate_wait_s: float = 10.0
    """A gate that has not reported by then is not waited for any more."""
    silent_s: float = 3.0
    """A gate not heard for this long gets no grants."""
    fence_factor: float = 5.0
    fence_floor_s: float = 60.0
    """A phase may hold a device for max(floor, factor x its planned time)."""
    late_factor: float = 2.0
    late_floor_s: float = 2.0
    """A job loses its turn when not ready after floor + factor x what the plan needs."""
    retry_s: float = 0.2
    """Delay before the second attempt; it doubles with every further one."""
    max_retry_s: float = 30.0
    stop_s: float = 20.0
    """How long drivers may take to end when the group goes down."""
    memory_every_s: float = 30.0
    """Host memory of a node is journaled at most this often."""
    memory_change: float = 0.05
    """And only when it differs by more than this fraction from what was journaled last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    job: Job
    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The group as the store has it."""

    members: tuple[MemberView, ...]
    nodes: tuple[NodeId, ...]
    desired: str = "run"
    turns: tuple[JobId, ...] = ()
    """Its round; empty for every member once, in the order of joining."""
    failures: Mapping[JobId, int] = field(default_factory=dict)
    """Attempts that failed before this controller took over."""
    had_member: bool = False
    """Whether any job ever was in the group."""
    open_grants: tuple[Grant, ...] = ()
    """Journaled without a release, told with the first view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One turn's news."""

    now_s: float
    utc: datetime
    reports: tuple[NodeReport, ...] = ()
    view: GroupView | None = None
    stored_n: int | None = None
    """Number of the last batch of writes that is in the store."""
    may_grant: bool = True
    """Whether the lease still covers new grants."""
    stop: bool = False
    """The group is to go down, whatever the store says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One member as this controller drives it."""

    view: MemberView
    attempt: int
    state: JobState
    ordered: bool = False
    """Whether this attempt was ordered or adopted."""
    failures: int = 0
    retry_at_s: float = 0.0
    after_write: int = 0
    """Batch that must be in the store before the next attempt may start."""
    due_s: float = float("inf")
    """When the job's next phase should be wanted at the latest."""
    status: DriverStatus | None = None
    """Newest word of this attempt's driver."""
    placement: Placement | None = None
    """Where this attempt runs."""
    rolls_full_s: float | None = None
    """Since when its rollout has every device; None while none does."""
    trains_full_s: float | None = None
    """The same of its train."""
    trained_s: float | None = None
    """When it gave its last train device back; None once it has others."""
    in_init: bool = False
    """Init was the last phase granted."""
    fence: str = ""
    """Why this attempt is to be killed."""
    slack_s: float = 0.0
    """What one cold wake leaves of its promise in an iteration, seconds."""
    spilled_attempt: int | None = None
    """The attempt whose train state lies on disk, so that its next wake is a cold one."""
    rewarded: bool = False
    ending: tuple[JobState, Reason, str] | None = None
    """How it ended; written once its devices are released."""
    ended: bool = False

    @property
    def job_id(self) -> JobId:
        return self.view.job.id

    @property
    def home(self) -> NodeId:
        return (self.placement or self.view.member.placement).train_nodes[0]

    @property
    def gates(self) -> tuple[NodeId, ...]:
        placement = self.placement or self.view.member.placement
        return tuple(dict.fromkeys(placement.train_nodes + placement.rollout_nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    report: NodeReport
    heard_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    group_id: GroupId
    epoch: int
    started_s: float
    limits: Limits = field(default_factory=Limits)
    stay: bool = False
    run_dir: str = ""
    """Below it each job has a folder."""
    nodes: tuple[NodeId, ...] | None = None
    """None until the store was read once."""
    desired: str = "run"
    turns: tuple[JobId, ...] = ()
    """The round that the store wants."""
    ready: bool = False
    """Every gate has reported, or its wait ran out."""
    stop_by_s: float = float("inf")
    had_member: bool = False
    runs: Mapping[JobId, Run] = field(default_factory=dict)
    gates: Mapping[NodeId, Gate] = field(default_factory=dict)
    rotation: Rotation | None = None
    latest: Latest = field(default_factory=Latest)
    """When the phases that this controller let begin are over at the latest."""
    open_grants: tuple[Grant, ...] = ()
    """Given by an earlier controller and never journaled as released."""
    memory: Mapping[NodeId, tuple[int, float]] = field(default_factory=dict)
    """(bytes, instant) last journaled of each node."""
    held: Mapping[DeviceId, Grant] = field(default_factory=dict)
    """Granted and not yet proven released."""
    seqs: Mapping[DeviceId, int] = field(default_factory=dict)
    granted: Mapping[tuple[JobId, DeviceId], tuple[int, str, int]] = field(default_factory=dict)
    """(attempt, phase, iteration) last granted, while reports may still want it."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Highest event number taken from each source."""
    acks: Mapping[str, int] = field(default_factory=dict)
    """Highest event number stored of each source."""
    unstored: tuple[tuple[int, str, int], ...] = ()
    """(batch, source, number) of events on their way to the store."""
    batch_n: int = 0
    stored_n: int = 0
    event_n: int = 0
    sent: Mapping[NodeId, tuple[Grants, float]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"{self.group_id}@{self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    node: NodeId
    grants: Grants


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEvents:
    events: tuple[PhaseEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState:
    job_id: JobId
    state: JobState
    reason: Reason = field(default_factory=Reason)
    error: str | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateJob:
    job_id: JobId
    columns: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMember:
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One batch: in one transaction, in this order."""

    batch_n: int
    operations: tuple[AppendEvents | SetState | UpdateJob | RemoveMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Nothing is left to do: every member ended, or the group is down."""

    why: str


Command = Send | Write | Finish
