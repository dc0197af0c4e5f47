"""Profiles: estimates kept for reuse by what they are of and on which hardware."""

from __future__ import annotations

import sqlalchemy as sa

from rmux.errors import NotFoundError
from rmux.estimate import JobProfile, ProfileSource
from rmux.store.documents import from_document, to_document
from rmux.store.engine import Conn
from rmux.store.schema import profiles


def save(conn: Conn, profile: JobProfile) -> None:
    """Store a profile; one of the same id is replaced."""
    values = {
        "spec_hash": profile.spec_hash,
        "source": profile.source.value,
        "rollout_hardware": profile.rollout_hardware,
        "train_hardware": profile.train_hardware,
        "document": to_document(profile),
        "created_at": profile.created_at,
    }
    changed = conn.execute(profiles.update().where(profiles.c.id == profile.id).values(values))
    if changed.rowcount == 0:
        conn.execute(profiles.insert().values(id=profile.id, **values))


def get(conn: Conn, profile_id: str) -> JobProfile:
    """NotFoundError when there is no such profile."""
    document = conn.execute(
        sa.select(profiles.c.document).where(profiles.c.id == profile_id)
    ).scalar()
    if document is None:
        raise NotFoundError(f"no profile {profile_id!r}", hint="rmux profile ls")
    return from_document(JobProfile, document)


def find(
    conn: Conn, *, spec_hash: str, rollout_hardware: str, train_hardware: str
) -> JobProfile | None:
    """The newest measured profile of such a job on such hardware, else the newest analytic one."""
    measured_first = sa.case((profiles.c.source == ProfileSource.MEASURED.value, 0), else_=1)
    document = conn.execute(
        sa.select(profiles.c.document)
        .where(
            profiles.c.spec_hash == spec_hash,
            profiles.c.rollout_hardware == rollout_hardware,
            profiles.c.train_hardware == train_hardware,
        )
        .order_by(measured_first, profiles.c.created_at.desc(), profiles.c.id.desc())
        .limit(1)
    ).scalar()
    return None if document is None else from_document(JobProfile, document)


def ls(conn: Conn, *, spec_hash: str | None = None) -> list[JobProfile]:
    """Newest first."""
    query = sa.select(profiles.c.document).order_by(
        profiles.c.created_at.desc(), profiles.c.id.desc()
    )
    if spec_hash is not None:
        query = query.where(profiles.c.spec_hash == spec_hash)
    return [from_document(JobProfile, document) for document in conn.execute(query).scalars()]
