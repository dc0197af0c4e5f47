"""JSON documents about jobs."""

from __future__ import annotations

from typing import Literal

from rmux.cli.documents import Document, Instant, Part, Record, named


class ReasonPart(Part):
    code: str
    message: str


class SloPart(Part):
    max_slowdown: float


class PhasePart(Part):
    name: str
    state: str


class RewardPart(Part):
    first: float | None
    last: float | None


class SlowdownPart(Part):
    """`now`: period ÷ the part of it the job did not wait for others; `planned`: ÷ the plan."""

    now: float | None
    planned: float | None
    period_s: float | None
    """Median of the last iterations, seconds."""


class JobDocument(Document):
    """A job, its state in lower case; null means not known or not begun."""

    schema_: Literal["rmux.job/v1"] = named("rmux.job/v1")
    id: str
    name: str
    state: str
    observed_at: Instant
    reason: ReasonPart
    group: str | None
    usd_per_h: float | None
    """Its share of the group's price; null when it is in none."""
    tenant: str
    """Empty for nobody's."""
    priority: int
    deadline_s: float
    """Counted from `created_at`; 0 for none."""
    user: str
    labels: dict[str, str]
    slo: SloPart
    iteration: int
    iterations: int
    phase: PhasePart | None
    slowdown: SlowdownPart
    reward: RewardPart
    spec_hash: str
    profile: str | None
    attempt: int
    desired: str
    error: str
    run_dir: str
    created_at: Instant
    started_at: Instant | None
    ended_at: Instant | None


class JobList(Document):
    """Jobs, oldest first."""

    schema_: Literal["rmux.job_list/v1"] = named("rmux.job_list/v1")
    items: tuple[JobDocument, ...]
    total: int
    truncated: bool


class JobChange(Part):
    at: Instant
    state: str
    reason: str
    attempt: int | None


class UnblockPart(Part):
    """A step that would let a waiting job in, or meet its deadline.

    `code`: of the refusal it answers, such as slo, capacity, residency, link, quota, reserved,
    deadline. `numbers` by name, such as {"slo": 1.19}.
    """

    code: str
    group: str | None
    message: str
    numbers: dict[str, float]


class JobReason(Document):
    """Why a job is where it is, what bears on it, and what would change it."""

    schema_: Literal["rmux.job_reason/v1"] = named("rmux.job_reason/v1")
    id: str
    name: str
    state: str
    since: Instant
    reason: ReasonPart
    facts: tuple[str, ...]
    unblock: tuple[UnblockPart, ...]
    """Also told in `next`, as sentences."""
    next: tuple[str, ...]
    history: tuple[JobChange, ...]


class JobReasonList(Document):
    """Why several jobs are where they are."""

    schema_: Literal["rmux.job_reason_list/v1"] = named("rmux.job_reason_list/v1")
    items: tuple[JobReason, ...]


class JobRequest(Record):
    """What asking something of one job came to."""

    schema_: Literal["rmux.job_request/v1"] = named("rmux.job_request/v1")
    id: str
    name: str
    state: str
    desired: str
    changed: bool


class CancelList(Document):
    """What `job cancel` came to."""

    schema_: Literal["rmux.cancel_list/v1"] = named("rmux.cancel_list/v1")
    items: tuple[JobRequest, ...]
    dry_run: bool


class PauseList(Document):
    """What `job pause` or `job resume` came to."""

    schema_: Literal["rmux.pause_list/v1"] = named("rmux.pause_list/v1")
    items: tuple[JobRequest, ...]
    dry_run: bool


class WaitedJob(Part):
    id: str
    name: str
    state: str
    iteration: int
    met: bool


class WaitDocument(Document):
    """What was waited for has come."""

    schema_: Literal["rmux.wait/v1"] = named("rmux.wait/v1")
    condition: str
    met: bool
    jobs: tuple[WaitedJob, ...]


class LogLine(Record):
    """One line of a driver's log."""

    schema_: Literal["rmux.log/v1"] = named("rmux.log/v1")
    job: str
    attempt: int | None
    line: str
