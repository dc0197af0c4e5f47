"""JSON documents about profiles, placements and submissions."""

from __future__ import annotations

from typing import Literal

from rmux.cli.documents import Document, Instant, Part, Record, named
from rmux.cli.documents_jobs import ReasonPart


class HardwarePart(Part):
    rollout: str
    train: str


class PhaseTimesPart(Part):
    """Seconds. `worst_case_s` has every response at its token limit; switch is park and wake."""

    name: str
    runs: int
    expected_s: float
    worst_case_s: float
    switch_s: float
    cold_s: float


class WorkingSetPart(Part):
    """Host memory per node while the job is parked, and the peak on top while it switches."""

    rollout_bytes: int
    train_bytes: int
    switch_peak_bytes: int


class EnginePart(Part):
    name: str
    version: str


class ProfileRecord(Record):
    """What is known of a job's phases on some hardware."""

    schema_: Literal["rmux.profile/v1"] = named("rmux.profile/v1")
    id: str
    spec_hash: str
    source: str
    """'measured' or 'analytic'."""
    hardware: HardwarePart
    phases: tuple[PhaseTimesPart, ...]
    sync_s: float
    sync_bytes: int
    checkpoint_s: float
    init_s: float
    solo_s: float
    """Planned period of the job alone."""
    working_set: WorkingSetPart
    engines: tuple[EnginePart, ...]
    created_at: Instant


class ProfileDocument(Document, ProfileRecord):
    """One profile; `name` is of the job that asked, null when looked up by id."""

    schema_: Literal["rmux.profile/v1"] = named("rmux.profile/v1")
    name: str | None
    saved: bool


class ProfileList(Document):
    """Newest first."""

    schema_: Literal["rmux.profile_list/v1"] = named("rmux.profile_list/v1")
    items: tuple[ProfileRecord, ...]


class MemoryPart(Part):
    """One node: what its members hold, parked and at a switch, of what it has for them."""

    node: str
    need_bytes: int
    limit_bytes: int
    free_bytes: int


class PlannedSlowdownPart(Part):
    job: str
    name: str
    worst_slowdown: float
    limit: float
    ok: bool


class PeriodPart(Part):
    """`binding`: cycle, rollout load, train load or order; `subject`: of which job or device."""

    period_s: float
    binding: str
    subject: str
    order: tuple[str, ...]
    cap_s: float | None
    """Longest period that every member accepts."""
    cap_job: str | None


class LinkPart(Part):
    """`sync_s`: the job's own sync with the worst overlap of all others on the link."""

    source: str
    target: str
    load_bps: float
    rate_bps: float
    sync_s: float


class BoundPart(ReasonPart):
    """A reason with what it is of (job, node, device or link) and its numbers by name."""

    subject: str | None
    numbers: dict[str, float]


class CandidatePart(Part):
    """One place. `verdict`: chosen, feasible (another is preferred) or refused.

    `reasons`: what speaks against it, every bound that does not hold, then what the period is bound
    by (cycle, rollout_load, train_load, order) and the nearest cap.
    """

    kind: str
    group: str | None
    """Null for a new group."""
    verdict: str
    reasons: tuple[BoundPart, ...]
    marginal_usd_per_h: float | None
    rollout: tuple[str, ...]
    train: tuple[str, ...]
    added_nodes: tuple[str, ...]
    new_nodes: tuple[str, ...]
    """Those of the added nodes that elastic pools would gain."""
    turns: tuple[str, ...]
    """The group's round, where it is not the order of joining."""
    overlapping: bool
    period: PeriodPart | None
    slo: tuple[PlannedSlowdownPart, ...]
    host_mem: tuple[MemoryPart, ...]
    link: LinkPart | None


class PlacementDocument(Document):
    """Where a job would go; `rmux job submit --placement` takes it back at the same revision."""

    schema_: Literal["rmux.placement/v1"] = named("rmux.placement/v1")
    dry_run: bool
    name: str
    feasible: bool
    never_fits: bool
    chosen: int | None
    """Index into `candidates`."""
    rule: str
    margin: float
    margin_usd_per_h: float
    """What the margin adds to the marginal price."""
    objective: str
    revision: int
    spec_hash: str
    slo: float
    profile: ProfileRecord
    reason: ReasonPart
    candidates: tuple[CandidatePart, ...]
    explored: int
    pruned: int
    """Refused without a placement of their own."""
    elapsed_s: float


class SubmissionDocument(Document):
    """A job as stored. `created` is false when the same job was there already."""

    schema_: Literal["rmux.submission/v1"] = named("rmux.submission/v1")
    dry_run: bool
    created: bool
    id: str
    name: str
    state: str
    group: str | None
    reason: ReasonPart
    spec_hash: str
    placement: PlacementDocument | None
    """Null when nothing was decided because the job was there already."""


class PeriodJobPart(Part):
    """One job of a round: its seconds per iteration there and alone, switch and sync inside."""

    name: str
    turns: int
    """Iterations in one round."""
    iteration_s: float
    solo_s: float
    slowdown: float
    slo: float | None
    ok: bool | None
    """Whether the slowdown keeps the SLO; null without one."""


class PeriodDocument(Document):
    """How long a round of some jobs takes. All seconds include the switch of each phase."""

    schema_: Literal["rmux.period/v1"] = named("rmux.period/v1")
    period_s: float
    cycle_s: float
    """Longest time of one job alone, per iteration."""
    load_s: float
    """Seconds of the busiest device when every job runs once."""
    saturated: bool
    """load_s >= cycle_s."""
    closed_form: bool
    """Whether the largest term is the period in any order; else it is that of `order`."""
    binding: str
    """cycle, rollout load, train load or order."""
    subject: str
    order: tuple[str, ...]
    """The jobs of one round by name; one with several turns stands as often."""
    switch_s: float
    jobs: tuple[PeriodJobPart, ...]


class MovePart(Part):
    job_id: str
    name: str
    source: str
    """The group that it leaves."""
    target: str | None
    """Null for a new group."""
    added_nodes: tuple[str, ...]
    price_s: float
    """What the move takes from the job."""
    price_usd: float


class RebalanceDocument(Document):
    """Moves in the order in which each is possible; none where none pays back."""

    schema_: Literal["rmux.rebalance/v1"] = named("rmux.rebalance/v1")
    dry_run: bool
    moves: tuple[MovePart, ...]
    staying: tuple[str, ...]
    """Jobs that have started, which stay."""
    usd_per_h_before: float
    usd_per_h_after: float
    saves_usd_per_h: float
    price_s: float
    price_usd: float
    payback_s: float
