"""The one consistent view that placement decides on."""

from __future__ import annotations

from rmux.estimate import JobProfile
from rmux.group import ClusterState, PendingJob
from rmux.job import JobState
from rmux.store import groups, pools
from rmux.store.documents import from_document
from rmux.store.engine import Conn
from rmux.store.jobs import job_of
from rmux.store.schema import jobs, profiles


def load(conn: Conn) -> ClusterState:
    """Pools, groups that hold anything, pending jobs that have a profile (oldest first)."""
    return ClusterState(
        revision=groups.revision(conn),
        cluster=pools.load(conn),
        groups=tuple(groups.ls(conn)),
        pending=tuple(_pending(conn)),
    )


def _pending(conn: Conn) -> list[PendingJob]:
    query = (
        jobs.select()
        .add_columns(profiles.c.document)
        .join(profiles, profiles.c.id == jobs.c.profile_id)
        .where(jobs.c.state == JobState.PENDING.value, jobs.c.desired == "run")
        .order_by(jobs.c.created_at, jobs.c.id)
    )
    found = []
    for row in conn.execute(query):
        job = job_of(row)
        profile = from_document(JobProfile, row.document)
        found.append(PendingJob(job=job, spec=job.spec, profile=profile))
    return found
