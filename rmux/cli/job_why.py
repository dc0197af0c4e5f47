"""Why a job is where it is: its reason, what bears on it, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rmux import units
from rmux.cli import job_views, memory_views
from rmux.cli.documents import Document
from rmux.cli.documents_jobs import (
    JobChange,
    JobReason,
    JobReasonList,
    ReasonPart,
    UnblockPart,
)
from rmux.cli.progress import read_pace
from rmux.clock import SystemClock, boot_id
from rmux.events import EventType
from rmux.group import solo_s
from rmux.job import Job, JobState

if TYPE_CHECKING:
    from rmux.group import ClusterState, PendingJob
    from rmux.place.unblock import Step
    from rmux.store.engine import Conn, Store

_ERROR_LINES = 8
_PLACES = 5


def explain(store: Store, job_id: str, *, history: bool = False) -> JobReason:
    """NotFoundError when there is no such job."""
    from rmux.store import jobs, state

    with store.read() as conn:
        job = jobs.get(conn, job_id)
        facts, advice = _bearing(conn, job)
        changes = _changes(conn, job) if history else ()
        now = state.load(conn) if job.state is JobState.PENDING else None
    waiting = next((one for one in now.pending if one.job.id == job.id), None) if now else None
    unblock: tuple[Step, ...] = ()
    if now is not None and waiting is not None:
        places, unblock = _against(now, waiting)
        facts += places
    return JobReason(
        id=job.id,
        name=job.spec.name,
        state=job.state.value,
        since=job.ended_at or job.created_at,
        reason=ReasonPart(code=job.reason.code, message=job.reason.message),
        facts=tuple(facts),
        unblock=tuple(
            UnblockPart(
                code=step.code,
                group=step.group_id,
                message=step.message,
                numbers=dict(step.numbers),
            )
            for step in unblock
        ),
        next=(*(f"{step.code}: {step.message}" for step in unblock), *advice),
        history=changes,
    )


def document(found: Sequence[JobReason]) -> Document:
    """One job's own document, or a list for several."""
    return found[0] if len(found) == 1 else JobReasonList(items=tuple(found))


def text(found: JobReason) -> str:
    """What people read: the answer first, then what bears on it, then what to do."""
    age = job_views.age(found.since, datetime.now(UTC))
    answer = found.reason.message or _STANDING[JobState(found.state)]
    if found.reason.code != "none":
        answer = f"{found.reason.code}: {answer}"
    lines = [f"{found.id} {found.name}  {job_views.state_text(found.state)} {age}   {answer}"]
    for label, items in (("facts", found.facts), ("next", found.next)):
        lines += [f"  {label if not n else '':<7} {item}" for n, item in enumerate(items)]
    lines += [
        f"  {'history' if not n else '':<7} {change.at.astimezone():%Y-%m-%d %H:%M:%S %z} "
        f"{change.state.upper()} {change.reason}".rstrip()
        for n, change in enumerate(found.history)
    ]
    return "\n".join(lines)


_STANDING = {
    JobState.PENDING: "waits to be placed",
    JobState.PLACED: "has its place and waits for its group to run",
    JobState.STARTING: "its processes are starting",
    JobState.RUNNING: "runs",
    JobState.PAUSED: "paused on request",
    JobState.STOPPING: "is being stopped",
    JobState.SUCCEEDED: "finished all its iterations",
    JobState.FAILED: "failed more often than its restart limit allows",
    JobState.CANCELLED: "cancelled",
    JobState.LOST: "its processes are not heard of; it resumes when its group is served again",
}


def _bearing(conn: Conn, job: Job) -> tuple[list[str], list[str]]:
    if job.state is JobState.PENDING:
        return _pending(conn, job)
    if job.state in (JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED):
        facts, advice = _ended(job)
        return [*memory_views.of_job(conn, job.id), *facts], advice
    return _placed(conn, job)


def _pending(conn: Conn, job: Job) -> tuple[list[str], list[str]]:
    from rmux.store import pools, profiles, state

    cluster = pools.load(conn)
    if not cluster.pools:
        return ["the store has no pools"], ["rmux pool add -f cluster.toml"]
    facts = []
    if job.profile_id is not None:
        profile = profiles.get(conn, job.profile_id)
        alone_s = solo_s(profile, max_staleness=job.spec.max_staleness)
        facts.append(
            f"needs   {job.spec.rollout.devices} rollout + {job.spec.train.devices} train devices, "
            f"slowdown ≤ {job.spec.slo:.2f} of {alone_s:.4g} s alone ({profile.source})"
        )
    free = state.load(conn)
    for pool in cluster.pools:
        drained = [f"{node.id} ({node.drained})" for node in pool.nodes if node.drained]
        num_free = len(free.free_nodes(pool.name))
        facts.append(
            f"pool    {pool.name}: {num_free} of {len(pool.nodes)} nodes free"
            + (f", drained: {', '.join(drained)}" if drained else "")
        )
    return facts, ["wait: a job that ends makes room, and this one is placed by itself"]


def _against(now: ClusterState, waiting: PendingJob) -> tuple[list[str], tuple[Step, ...]]:
    """What stands against each place now, nearest first, and what would let the job in."""
    from rmux.place.admit import admit
    from rmux.place.decision import place_name
    from rmux.place.unblock import steps

    decision = admit(now, spec=waiting.spec, profile=waiting.profile, job_id=waiting.job.id)
    nearest = sorted(decision.candidates, key=lambda one: one.miss)
    told = [
        f"place   {place_name(one)} ({one.kind}): {one.reason.message or 'would do now'}"
        for one in nearest
    ]
    more = len(told) - _PLACES
    facts = [*told[:_PLACES], *([f"place   {more} more refused"] if more > 0 else [])]
    return facts, steps(now, waiting, decision, now=datetime.now(UTC))


def _placed(conn: Conn, job: Job) -> tuple[list[str], list[str]]:
    from rmux.store import requests

    facts = [f"group   {job.group_id}, iteration {job.iteration} of {job.spec.iterations}"]
    facts += _plan(conn, job)
    served = requests.has_controller(
        conn, job.group_id, now_s=SystemClock().now_s(), boot_id=boot_id()
    )
    if not served:
        facts.append("nobody serves its group now")
        return facts, [f"rmux group up {job.group_id}"]
    pace = read_pace(conn, job.id)
    if pace.period_s is not None and pace.slowdown is not None:
        facts.append(
            f"pace    {pace.period_s:.4g} s an iteration, {pace.waited_s:.4g} s of it waiting "
            f"for devices: slowdown {pace.slowdown:.2f} (accepts {job.spec.slo:.2f})"
        )
    if job.phase is not None:
        facts.append(f"phase   {job.phase} {job.phase_state}")
    facts += memory_views.of_job(conn, job.id)
    if job.attempt > 1:
        facts.append(f"attempt {job.attempt}: {_failures(conn, job)}")
    return facts, [f"rmux group watch {job.group_id}"]


def _plan(conn: Conn, job: Job) -> list[str]:
    """What it is charged, and whether the plan meets its deadline."""
    from rmux.place import deadline
    from rmux.place.period import period
    from rmux.store import groups

    usd_per_h = job_views.charged_usd_per_h(conn, [job]).get(job.id)
    facts = [] if usd_per_h is None else [f"charged {units.format_usd_per_h(usd_per_h)}"]
    group = None if job.group_id is None else groups.get(conn, job.group_id)
    if not job.spec.deadline_s or group is None or job.id not in group.round:
        return facts
    left_s = (job.spec.iterations - job.iteration) * period(
        group.members, order=group.round
    ).iteration_s(job.id)
    end_s = (datetime.now(UTC) - job.created_at).total_seconds() + left_s
    late = deadline.too_late(end_s, job.spec.deadline_s)
    met = f"planned to end {units.format_duration(end_s)} after submission, in time"
    return [*facts, f"deadline {met if late is None else late.message}"]


def _failures(conn: Conn, job: Job) -> str:
    """How often it failed: attempts also begin when its group is brought up again."""
    from rmux.store import events

    told = events.read(conn, job=job.id, types=[EventType.JOB_STATE])
    count = sum(event.data.get("code") == "job.restarting" for event in told)
    return f"{count} failed, {job.spec.restart_limit} restarts allowed"


def _ended(job: Job) -> tuple[list[str], list[str]]:
    facts = [f"ended   after {job.iteration} of {job.spec.iterations} iterations"]
    if job.reward_first is not None and job.reward_last is not None:
        facts.append(f"reward  {job.reward_first:.4g} → {job.reward_last:.4g}")
    facts += [f"stderr  {line}" for line in job.error.splitlines()[-_ERROR_LINES:]]
    advice = [f"rmux job logs {job.id} --tail 100"] if job.state is JobState.FAILED else []
    return facts, advice


def _changes(conn: Conn, job: Job) -> tuple[JobChange, ...]:
    from rmux.store import events

    found = events.read(conn, job=job.id, types=[EventType.JOB_STATE])
    return tuple(
        JobChange(
            at=event.at,
            state=str(event.data.get("state", "")),
            reason=str(event.data.get("reason") or ""),
            attempt=event.data.get("attempt"),
        )
        for event in found
    )
