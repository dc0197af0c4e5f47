"""Jobs as documents and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rmux import units
from rmux.cli.documents_jobs import JobDocument
from rmux.cli.output import Column, Table
from rmux.cli.progress import Pace, read_pace
from rmux.group import solo_s
from rmux.job import Job, JobState

if TYPE_CHECKING:
    from rmux.store.engine import Conn

_MOVING = {JobState.RUNNING, JobState.PAUSED, JobState.STOPPING, JobState.LOST, JobState.STARTING}

COLUMNS = (
    "ID",
    "NAME",
    "STATE",
    "PHASE",
    Column("ITER", right=True),
    Column("AGE", right=True),
    "GROUP",
    Column("SLOWDOWN", right=True),
    "REASON",
    Column("USD/H", right=True, wide=True),
    Column("TENANT", wide=True),
    Column("PRIORITY", right=True, wide=True),
    Column("USER", wide=True),
    Column("ATTEMPT", right=True, wide=True),
    Column("REWARD", right=True, wide=True),
    Column("CREATED", wide=True),
    Column("PROFILE", wide=True),
    Column("LABELS", wide=True),
)


def paces(conn: Conn, jobs: Iterable[Job]) -> dict[str, Pace]:
    """The pace of every job that is under way."""
    return {job.id: read_pace(conn, job.id) for job in jobs if job.state in _MOVING}


def planned_solo_s(conn: Conn, jobs: Iterable[Job]) -> dict[str, float]:
    """Planned period alone of every job that is under way and has a profile, seconds."""
    from rmux.store import profiles

    chosen = [(job, job.profile_id) for job in jobs if job.state in _MOVING and job.profile_id]
    known = {one: profiles.get(conn, one) for one in {profile for _, profile in chosen}}
    return {
        str(job.id): solo_s(known[profile], max_staleness=job.spec.max_staleness)
        for job, profile in chosen
    }


def charged_usd_per_h(conn: Conn, jobs: Iterable[Job]) -> dict[str, float]:
    """What every job in a group is charged of its price now, USD/h."""
    placed = [job for job in jobs if job.group_id is not None and not job.state.is_terminal]
    if not placed:
        return {}
    from rmux.cli import charges

    return {
        str(job): usd for job, usd in charges.of_jobs(conn, [j.group_id for j in placed]).items()
    }


def fields(
    job: Job,
    *,
    pace: Pace,
    solo_s: float | None,
    usd_per_h: float | None,
    observed_at: datetime,
) -> dict[str, Any]:
    """What `rmux.job/v1` says of a job."""
    return {
        "id": job.id,
        "name": job.spec.name,
        "state": job.state.value,
        "observed_at": observed_at,
        "reason": {"code": job.reason.code, "message": job.reason.message},
        "group": job.group_id,
        "usd_per_h": usd_per_h,
        "tenant": job.spec.tenant,
        "priority": job.spec.priority,
        "deadline_s": job.spec.deadline_s,
        "user": job.user,
        "labels": dict(job.spec.labels),
        "slo": {"max_slowdown": job.spec.slo},
        "iteration": job.iteration,
        "iterations": job.spec.iterations,
        "phase": None if job.phase is None else {"name": job.phase.value, "state": job.phase_state},
        "slowdown": {
            "now": pace.slowdown,
            "planned": pace.planned_slowdown(solo_s),
            "period_s": pace.period_s,
        },
        "reward": {"first": job.reward_first, "last": job.reward_last},
        "spec_hash": job.spec_hash,
        "profile": job.profile_id,
        "attempt": job.attempt,
        "desired": job.desired,
        "error": job.error,
        "run_dir": job.run_dir,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }


def document(conn: Conn, job: Job) -> JobDocument:
    """One job as the document of `rmux job show`."""
    return JobDocument(
        **fields(
            job,
            pace=read_pace(conn, job.id),
            solo_s=planned_solo_s(conn, [job]).get(job.id),
            usd_per_h=charged_usd_per_h(conn, [job]).get(job.id),
            observed_at=datetime.now(UTC),
        )
    )


def records(conn: Conn, jobs: Iterable[Job], *, charged: bool = True) -> tuple[JobDocument, ...]:
    """Jobs as documents; without `charged` nobody looks up what they are charged."""
    found = list(jobs)
    now, pace, solo = datetime.now(UTC), paces(conn, found), planned_solo_s(conn, found)
    usd_per_h = charged_usd_per_h(conn, found) if charged else {}
    return tuple(
        JobDocument(
            **fields(
                job,
                pace=pace.get(job.id, Pace()),
                solo_s=solo.get(job.id),
                usd_per_h=usd_per_h.get(job.id),
                observed_at=now,
            )
        )
        for job in found
    )


def table(items: Iterable[JobDocument]) -> Table:
    return Table(COLUMNS, [_row(item) for item in items])


def state_text(state: str, desired: str = "run") -> str:
    """'RUNNING'; 'LOST?' since a lost job may come back; 'RUNNING>CANCEL' while that is coming."""
    text = state.upper() + ("?" if state == "lost" else "")
    moving = state not in ("cancelled", "succeeded", "failed", "stopping")
    if moving and desired in ("cancel", "cancel-now"):
        return f"{text}>CANCEL"
    return f"{text}>PAUSE" if moving and desired == "pause" and state != "paused" else text


def phase_text(item: JobDocument) -> str:
    """'train' when it runs, 'wait:train' while it waits for its devices."""
    if item.phase is None:
        return "-"
    return f"wait:{item.phase.name}" if item.phase.state == "waiting" else item.phase.name


def slowdown_text(now: float | None, limit: float) -> str:
    return f"{'-' if now is None else f'{now:.2f}'}/{limit:.2f}"


def age(since: datetime, until: datetime) -> str:
    """'40s', '14m', '2h05m', '2d03h'."""
    seconds = max(0.0, (until - since).total_seconds())
    if seconds < 100:
        return f"{seconds:.0f}s"
    return f"{seconds // 60:.0f}m" if seconds < 3600 else units.format_duration(seconds)


def labels_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items()) or "-"


def _row(item: JobDocument) -> list[object]:
    reason = item.reason.code if item.reason.code != "none" else None
    reward = item.reward.last
    return [
        item.id,
        item.name,
        state_text(item.state, item.desired),
        phase_text(item),
        item.iteration if item.iteration or item.started_at else None,
        age(item.created_at, item.observed_at),
        item.group,
        slowdown_text(item.slowdown.now, item.slo.max_slowdown),
        reason,
        None if item.usd_per_h is None else f"{item.usd_per_h:.2f}",
        item.tenant or None,
        item.priority,
        item.user or None,
        item.attempt,
        None if reward is None else f"{reward:.3f}",
        item.created_at.astimezone().isoformat(sep=" ", timespec="seconds"),
        item.profile,
        labels_text(item.labels),
    ]


def deadline_text(job: JobDocument) -> str | None:
    """'2026-11-30 12:00:00+00:00 (2h after submission)'; None without one."""
    if not job.deadline_s:
        return None
    at = job.created_at + timedelta(seconds=job.deadline_s)
    local = at.astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{local} ({units.format_duration(job.deadline_s)} after submission)"


def text(job: JobDocument) -> str:
    """One job for people: a name and a value per line."""
    local = {
        name: None if at is None else at.astimezone().isoformat(sep=" ", timespec="seconds")
        for name, at in (
            ("created", job.created_at),
            ("started", job.started_at),
            ("ended", job.ended_at),
        )
    }
    reason = f"{job.reason.code}: {job.reason.message}" if job.reason.code != "none" else None
    slowdown, reward = job.slowdown, job.reward
    period = None if slowdown.period_s is None else f"{slowdown.period_s:.4g} s"
    planned = None if slowdown.planned is None else f"{slowdown.planned:.2f} of the plan alone"
    rows = {
        "job": f"{job.id} {job.name}",
        "state": state_text(job.state, job.desired),
        "reason": reason,
        "group": job.group,
        "charged": None if job.usd_per_h is None else units.format_usd_per_h(job.usd_per_h),
        "tenant": job.tenant or None,
        "priority": job.priority,
        "deadline": deadline_text(job),
        "phase": phase_text(job),
        "iteration": f"{job.iteration} of {job.iterations}",
        "period": period,
        "slowdown": slowdown_text(slowdown.now, job.slo.max_slowdown),
        "planned": planned,
        "reward": None if reward.last is None else f"{reward.first} → {reward.last}",
        "attempt": job.attempt,
        "user": job.user or None,
        "labels": labels_text(job.labels),
        "profile": job.profile,
        "spec": job.spec_hash,
        **local,
        "folder": job.run_dir or None,
    }
    lines = [f"{name:<10} {'-' if value is None else value}" for name, value in rows.items()]
    return "\n".join([*lines, *(f"stderr     {line}" for line in job.error.splitlines())])
