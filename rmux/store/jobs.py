"""Jobs: what was submitted, where it stands, what its user wants of it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from rmux.errors import ConflictError, NotFoundError, UserError
from rmux.ids import GroupId, JobId, ProfileId
from rmux.job import Job, JobSpec, JobState, Phase, Reason
from rmux.store.documents import from_document, to_document
from rmux.store.engine import Conn
from rmux.store.revision import bump
from rmux.store.schema import jobs

ENDED = frozenset(state for state in JobState if state.is_terminal)
TERMINAL = tuple(state.value for state in ENDED)
MIN_PREFIX = 6
"""Characters of an id, after its kind, that a person may shorten it to."""

_UPDATABLE = frozenset(
    {
        "iteration", "phase", "phase_state", "attempt", "reward_first", "reward_last",
        "profile_id", "run_dir", "started_at", "error", "group_id",
    }
)  # fmt: skip


def insert(conn: Conn, job: Job) -> None:
    """Store a new job. ConflictError when its id is taken."""
    if conn.execute(sa.select(jobs.c.id).where(jobs.c.id == job.id)).first() is not None:
        raise ConflictError(f"job {job.id} exists already")
    conn.execute(jobs.insert().values(_row(job)))
    if job.state is JobState.PENDING:
        bump(conn)


def get(conn: Conn, job_id: str) -> Job:
    """NotFoundError when there is no such job."""
    row = conn.execute(jobs.select().where(jobs.c.id == job_id)).first()
    if row is None:
        raise NotFoundError(f"no job {job_id!r}", hint="rmux job ls --all")
    return job_of(row)


def resolve(conn: Conn, text: str) -> JobId:
    """The id that a person means by a full id, an active job's name or a prefix of an id.

    NotFoundError when nothing fits, UserError when several jobs do. A name that no active job
    has any more means the newest job that had it.
    """
    if conn.execute(sa.select(jobs.c.id).where(jobs.c.id == text)).first() is not None:
        return JobId(text)
    named = conn.execute(
        sa.select(jobs.c.id, jobs.c.state)
        .where(jobs.c.name == text)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(100)
    ).all()
    active = [row.id for row in named if row.state not in TERMINAL]
    if len(active) > 1:
        raise _ambiguous(text, active)
    if named:
        return JobId(active[0] if active else named[0].id)
    return JobId(resolve_prefix(conn, jobs.c.id, text, noun="job"))


def resolve_prefix(conn: Conn, column: sa.Column[str], text: str, *, noun: str) -> str:
    """The one id that starts so; 'j-01kb3v' and '01kb3v' both do."""
    kind = f"{noun[0]}-"
    prefix = text if text.startswith(kind) else kind + text
    if len(prefix) - len(kind) >= MIN_PREFIX:
        query = sa.select(column).where(column.startswith(prefix, autoescape=True)).limit(20)
        found = list(conn.execute(query).scalars())
        if len(found) > 1:
            raise _ambiguous(text, found)
        if found:
            return str(found[0])
    raise NotFoundError(f"no {noun} {text!r}", hint=f"rmux {noun} ls --all", details={noun: text})


def by_name(conn: Conn, name: str) -> Job | None:
    """The newest job of that name."""
    row = conn.execute(
        jobs.select()
        .where(jobs.c.name == name)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(1)
    ).first()
    return None if row is None else job_of(row)


def ls(
    conn: Conn,
    *,
    states: Collection[JobState] | None = None,
    group: str | None = None,
    ended_after: datetime | None = None,
    limit: int | None = None,
) -> list[Job]:
    """Jobs in the order they were made; with `limit` only the newest of them.

    `ended_after` leaves out the ones that ended before.
    """
    query = jobs.select().where(*_matching(states, group, ended_after))
    query = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
    if limit is not None:
        query = query.limit(limit)
    return [job_of(row) for row in reversed(conn.execute(query).all())]


def count(
    conn: Conn,
    *,
    states: Collection[JobState] | None = None,
    group: str | None = None,
    ended_after: datetime | None = None,
) -> int:
    """How many jobs `ls` would list without a limit."""
    query = sa.select(sa.func.count()).select_from(jobs)
    return int(conn.execute(query.where(*_matching(states, group, ended_after))).scalar_one())


def set_state(
    conn: Conn,
    job_id: str,
    state: JobState,
    *,
    reason: Reason | None = None,
    error: str | None = None,
    ended_at: datetime | None = None,
) -> Job:
    """Move a job to a state. ConflictError when it cannot go there.

    The same state again only renews the reason. Without a reason the old one is cleared. Going
    back to pending leaves the group.
    """
    job = get(conn, job_id)
    if state is not job.state:
        job.state.check_next(state)
    values: dict[str, Any] = {"state": state.value}
    if reason is not None or state is not job.state:
        told = reason or Reason()
        values |= {"reason_code": told.code, "reason_message": told.message}
    if error is not None:
        values["error"] = error
    if state.is_terminal and job.ended_at is None:
        values |= {"ended_at": ended_at or datetime.now(UTC), "phase": None, "phase_state": ""}
    if state is JobState.PENDING and state is not job.state:
        values |= {"group_id": None, "phase": None, "phase_state": ""}
    if state is JobState.RUNNING and job.started_at is None:
        values["started_at"] = datetime.now(UTC)
    conn.execute(jobs.update().where(jobs.c.id == job_id).values(values))
    return get(conn, job_id)


def set_desired(conn: Conn, job_id: str, desired: str) -> bool:
    """What the user wants: 'run', 'cancel', 'cancel-now', 'pause'. False when nothing changed.

    A job that ended is left as it is.
    """
    job = get(conn, job_id)
    if job.state.is_terminal or job.desired == desired:
        return False
    conn.execute(jobs.update().where(jobs.c.id == job_id).values(desired=desired))
    return True


def update(conn: Conn, job_id: str, **columns: Any) -> None:
    """Write some of iteration, phase, phase_state, attempt, reward_first, reward_last, profile_id,
    run_dir, started_at, error, group_id. NotFoundError when there is no such job."""
    unknown = set(columns) - _UPDATABLE
    if unknown:
        raise TypeError(f"jobs.update cannot write {', '.join(sorted(unknown))}")
    values = {key: _plain(value) for key, value in columns.items()}
    if conn.execute(jobs.update().where(jobs.c.id == job_id).values(values)).rowcount == 0:
        raise NotFoundError(f"no job {job_id!r}")


def job_of(row: Any) -> Job:
    """The job of one row of the jobs table."""
    return Job(
        id=JobId(row.id),
        spec=from_document(JobSpec, row.spec),
        spec_hash=row.spec_hash,
        state=JobState(row.state),
        created_at=row.created_at,
        user=row.user,
        reason=Reason(code=row.reason_code, message=row.reason_message),
        group_id=None if row.group_id is None else GroupId(row.group_id),
        profile_id=None if row.profile_id is None else ProfileId(row.profile_id),
        iteration=row.iteration,
        attempt=row.attempt,
        desired=row.desired,
        phase=None if row.phase is None else Phase(row.phase),
        phase_state=row.phase_state,
        reward_first=row.reward_first,
        reward_last=row.reward_last,
        error=row.error,
        run_dir=row.run_dir,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _matching(
    states: Collection[JobState] | None, group: str | None, ended_after: datetime | None
) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if states is not None:
        found.append(jobs.c.state.in_([state.value for state in states]))
    if group is not None:
        found.append(jobs.c.group_id == group)
    if ended_after is not None:
        found.append(sa.or_(jobs.c.ended_at.is_(None), jobs.c.ended_at >= ended_after))
    return found


def _row(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.spec.name,
        "spec": to_document(job.spec),
        "spec_hash": job.spec_hash,
        "state": job.state.value,
        "created_at": job.created_at,
        "user": job.user,
        "reason_code": job.reason.code,
        "reason_message": job.reason.message,
        "group_id": job.group_id,
        "profile_id": job.profile_id,
        "iteration": job.iteration,
        "attempt": job.attempt,
        "desired": job.desired,
        "phase": _plain(job.phase),
        "phase_state": job.phase_state,
        "reward_first": job.reward_first,
        "reward_last": job.reward_last,
        "error": job.error,
        "run_dir": job.run_dir,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Phase) else value


def _ambiguous(text: str, found: list[str]) -> UserError:
    return UserError(
        f"{text!r} means {len(found)} of them: {', '.join(sorted(found))}",
        code="id.ambiguous",
        hint="give the full id",
        details={"candidates": sorted(found)},
    )
