"""What users ask of running things: written here, carried out by the controller that polls it.

Where no controller lives there is nobody to carry it out, so it takes effect at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmux import clock
from rmux.clock import SystemClock
from rmux.errors import ConflictError
from rmux.group import CoExecGroup
from rmux.ids import GroupId, JobId
from rmux.job import Job, JobState, Reason
from rmux.store import groups, jobs, leases
from rmux.store.engine import Conn

_RANK = {"run": 0, "pause": 0, "cancel": 1, "cancel-now": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a request came to: the job now, whether anything changed, whether a node came free."""

    job: Job
    changed: bool
    freed: bool = False


def controller_lease(group_id: str) -> str:
    """The lease that a group's controller holds."""
    return f"group:{group_id}"


def has_controller(conn: Conn, group_id: str | None, *, now_s: float, boot_id: str) -> bool:
    if group_id is None:
        return False
    name = controller_lease(group_id)
    return leases.live(conn, name, now_s=now_s, boot_id=boot_id) is not None


def cancel(
    conn: Conn, job_id: JobId, *, now: bool, now_s: float, boot_id: str, by: str = ""
) -> Request:
    """End a job: at its next iteration boundary, or `now`; at once where nothing runs it.

    A job that ended already, or is being cancelled as asked, is left as it is.
    """
    job = jobs.get(conn, job_id)
    desired = "cancel-now" if now else "cancel"
    if job.state.is_terminal:
        return Request(job=job, changed=False)
    served = has_controller(conn, job.group_id, now_s=now_s, boot_id=boot_id)
    if job.state is JobState.PENDING or not served:
        reason = Reason(code="cancelled", message=f"cancelled by {by}" if by else "cancelled")
        ended = jobs.set_state(conn, job_id, JobState.CANCELLED, reason=reason)
        left = groups.remove_member(conn, job_id)
        return Request(job=ended, changed=True, freed=left is not None)
    if _RANK[job.desired] >= _RANK[desired]:
        return Request(job=job, changed=False)
    jobs.set_desired(conn, job_id, desired)
    return Request(job=jobs.get(conn, job_id), changed=True)


def pause(conn: Conn, job_id: JobId) -> Request:
    """Keep a job from running; ConflictError when it is ending or ended."""
    return _want(conn, job_id, "pause")


def resume(conn: Conn, job_id: JobId) -> Request:
    """Let a paused job run again; ConflictError when it is ending or ended."""
    return _want(conn, job_id, "run")


def _want(conn: Conn, job_id: JobId, desired: str) -> Request:
    job = jobs.get(conn, job_id)
    if job.state.is_terminal or _RANK[job.desired] > 0:
        state = job.state if job.state.is_terminal else "being cancelled"
        raise ConflictError(f"job {job_id} is {state}", details={"state": str(job.state)})
    changed = jobs.set_desired(conn, job_id, desired)
    return Request(job=jobs.get(conn, job_id), changed=changed)


def group_desired(
    conn: Conn,
    group_id: GroupId,
    desired: str,
    *,
    now_s: float | None = None,
    boot_id: str | None = None,
) -> tuple[CoExecGroup, bool]:
    """(the group, whether its wish or one of its jobs changed). Instants default to this host's.

    'down' without a live controller, as after a crash: its jobs go back to their places at once,
    since nobody is left to say that they stopped.
    """
    changed = groups.set_desired(conn, group_id, desired)
    now_s = SystemClock().now_s() if now_s is None else now_s
    boot_id = clock.boot_id() if boot_id is None else boot_id
    if desired == "down" and not has_controller(conn, group_id, now_s=now_s, boot_id=boot_id):
        for member in groups.get(conn, group_id).members:
            changed |= _put_back(conn, member.job_id)
    return groups.get(conn, group_id), changed


def _put_back(conn: Conn, job_id: JobId) -> bool:
    if jobs.get(conn, job_id).state is JobState.PLACED:
        return False
    message = "its group went down without a controller"
    jobs.set_state(conn, job_id, JobState.PLACED, reason=Reason(code="group.down", message=message))
    jobs.update(conn, job_id, phase=None, phase_state="")
    return True
