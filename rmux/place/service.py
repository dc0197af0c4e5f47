"""Placement on the store: read one consistent state, decide, write guarded by its revision.

Somebody else who changes pools, groups or placements in between makes the write stale: then all is
read and decided again, a few times. Killed between reading and writing, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rmux.errors import ConflictError, InfeasibleError, InternalError, NotFoundError
from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, PendingJob
from rmux.ids import GroupId, IdSource, JobId
from rmux.job import Job, JobSpec, JobState
from rmux.place import service_drift
from rmux.place.admit import admit
from rmux.place.decision import Decision
from rmux.place.rebalance import Move, Rebalance, propose, steps
from rmux.place.settle import founded_by, settle
from rmux.place.settle import settle_pending as settle_decisions
from rmux.store import groups, jobs, profiles, state
from rmux.store.engine import Conn, Store

ATTEMPTS = 8
"""Times a decision is made again after others changed the store meanwhile."""

UNNAMED = JobId("j-new")
"""The job of a plan that no job stands behind yet."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as stored and what was decided; a job that was there already has no decision."""

    job: Job
    created: bool
    decision: Decision | None


def plan(
    store: Store,
    spec: JobSpec,
    profile: JobProfile,
    *,
    rule: str | None = None,
    margin: float | None = None,
    group: GroupId | None = None,
) -> Decision:
    """Where the job would go now. Writes nothing."""
    with store.read() as conn:
        now = state.load(conn)
    return admit(
        now, spec=spec, profile=profile, job_id=UNNAMED, rule=rule, margin=margin, group=group
    )


def place_job(
    store: Store,
    job_id: JobId,
    *,
    ids: IdSource,
    rule: str | None = None,
    margin: float | None = None,
) -> Decision:
    """Place one pending job, or write down why it has to wait.

    ConflictError when the job is not pending, or when others kept changing the store.
    """

    def attempt() -> Decision:
        with store.read() as conn:
            now, job, profile = state.load(conn), *_pending(conn, job_id)
        decision = admit(
            now, spec=job.spec, profile=profile, job_id=job_id, rule=rule, margin=margin
        )
        with store.write() as conn:
            _write(conn, [decision], now, ids)
        return decision

    return _until_fresh(attempt)


def settle_pending(
    store: Store, *, ids: IdSource, rule: str | None = None, margin: float | None = None
) -> tuple[Decision, ...]:
    """One pass over the cluster, in one transaction: who waits is placed in the order of the
    queue, and, where the policy says so, a job whose growth breaks a promise gets another place in
    its group, and jobs that have not started yet move where that saves.

    ConflictError when others kept changing the store.
    """

    def attempt() -> tuple[Decision, ...]:
        with store.read() as conn:
            now = state.load(conn)
            observed = service_drift.observed(conn, now)
            risks = service_drift.untold(conn, now, observed)
        staying = _started(now)
        done = settle(now, rule=rule, margin=margin, staying=staying, observed=observed)
        told = {one.job.id: one.job.reason for one in now.pending}
        news = [one for one in done.decisions if one.admitted or one.reason != told[one.job_id]]
        moves = () if done.rebalance is None else done.rebalance.moves
        again = (
            done.readmission if done.readmission and done.readmission.decision.admitted else None
        )
        if news or moves or again or risks:
            with store.write() as conn:
                _write(conn, news, now, ids, moves=moves)
                if again is not None and not service_drift.admit_again(conn, again, ids):
                    raise _stale()
                service_drift.tell(conn, risks)
        return done.decisions

    return _until_fresh(attempt)


def rebalance(
    store: Store, *, ids: IdSource, payback_s: float | None = None, dry_run: bool = True
) -> tuple[Rebalance, tuple[JobId, ...]]:
    """Moves that pay back, carried out unless `dry_run`; and the jobs that stay as they have
    started.

    ConflictError when others kept changing the store.
    """

    def attempt() -> tuple[Rebalance, tuple[JobId, ...]]:
        with store.read() as conn:
            now = state.load(conn)
        staying = _started(now)
        found = propose(now, payback_s=payback_s, staying=staying)
        if found.moves and not dry_run:
            with store.write() as conn:
                _write(conn, [], now, ids, moves=found.moves)
        return found, tuple(sorted(staying))

    return _until_fresh(attempt)


def _started(now: ClusterState) -> frozenset[JobId]:
    """Members that a controller has taken up: their state lies on the nodes they have."""
    return frozenset(
        member.job_id
        for group in now.groups
        for member in group.members
        if member.state is not JobState.PLACED
    )


def submit(
    store: Store,
    job: Job,
    profile: JobProfile,
    *,
    ids: IdSource,
    rule: str | None = None,
    margin: float | None = None,
    by_name: bool = False,
    revision: int | None = None,
    dry_run: bool = False,
) -> Submission:
    """Store a new job with its profile and place it, all in one transaction.

    A job of the same id, or with `by_name` an unfinished one of the same name, is returned as it
    stands when its spec is the same. With `dry_run` everything is done and rolled back.
    ConflictError when another job has the id or the name, when the store is not at `revision`, or
    when others kept changing it; InfeasibleError, with nothing stored, when the job could never be
    placed.
    """
    job = replace(job, profile_id=profile.id)

    def attempt() -> Submission:
        with store.read() as conn:
            known = _known(conn, job, by_name=by_name)
            now = state.load(conn)
        if known is not None:
            return Submission(job=known, created=False, decision=None)
        if revision is not None and now.revision != revision:
            raise ConflictError(
                f"the placement was made at revision {revision}, the store is at {now.revision}",
                hint="run rmux place again",
                code="place.stale",
            )
        decisions = _with_newcomer(now, job, profile, rule=rule, margin=margin)
        own = next(one for one in decisions if one.job_id == job.id)
        if own.never_fits:
            raise infeasible(job.spec, own)
        return _stored(store, job, profile, own, decisions, now, ids=ids, dry_run=dry_run)

    return _until_fresh(attempt)


def _with_newcomer(
    now: ClusterState,
    job: Job,
    profile: JobProfile,
    *,
    rule: str | None,
    margin: float | None,
) -> tuple[Decision, ...]:
    """A submission is decided alone, unless a queue, quotas or a deadline bear on it: then it takes
    its place among those who wait, and the whole pass is written."""
    waiting = PendingJob(job=job, spec=job.spec, profile=profile)
    shared = now.cluster.tenants or now.cluster.policy.ageing_s
    others = now.pending if shared else ()
    return settle_decisions(
        replace(now, pending=(*others, waiting)), now=job.created_at, rule=rule, margin=margin
    )


def _stored(
    store: Store,
    job: Job,
    profile: JobProfile,
    decision: Decision,
    decisions: Sequence[Decision],
    now: ClusterState,
    *,
    ids: IdSource,
    dry_run: bool,
) -> Submission:
    done: Submission | None = None
    try:
        with store.write() as conn:
            _check_revision(conn, now)
            profiles.save(conn, profile)
            jobs.insert(conn, job)
            _apply(conn, decisions, ids)
            done = Submission(job=jobs.get(conn, job.id), created=True, decision=decision)
            if dry_run:
                raise _RolledBackError
    except _RolledBackError:
        pass
    if done is None:
        raise InternalError("a submission was neither stored nor refused")
    return done


class _RolledBackError(Exception):
    """Ends the transaction of a dry run."""


def infeasible(spec: JobSpec, decision: Decision, *, hint: str | None = None) -> InfeasibleError:
    """The error for a job that no cluster state would admit, or none does now."""
    return InfeasibleError(
        f"no placement for {spec.name}: {decision.reason.message}",
        hint=hint,
        code="place.infeasible",
        details={"reason": decision.reason.code, "never_fits": decision.never_fits},
    )


def differences(ours: JobSpec, theirs: JobSpec) -> list[str]:
    """'rollout.max_tokens: 256 here, 128 there' for every key that differs but the name."""
    return list(_differences(ours, theirs, ""))


def _differences(ours: object, theirs: object, prefix: str) -> Sequence[str]:
    found: list[str] = []
    for name in getattr(ours, "__dataclass_fields__", {}):
        here, there = getattr(ours, name), getattr(theirs, name)
        if here == there or prefix + name == "name":
            continue
        if hasattr(here, "__dataclass_fields__"):
            found += _differences(here, there, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}: {here!r} here, {there!r} there")
    return found


def _known(conn: Conn, job: Job, *, by_name: bool) -> Job | None:
    """The stored job that this one repeats. ConflictError when it is another one."""
    try:
        known: Job | None = jobs.get(conn, job.id)
    except NotFoundError:
        known = None
    if known is None and by_name:
        named = jobs.by_name(conn, job.spec.name)
        known = named if named is not None and not named.state.is_terminal else None
    if known is None:
        return None
    if known.spec_hash != job.spec_hash:
        differing = differences(job.spec, known.spec)
        raise ConflictError(
            f"job {known.id} ({known.spec.name}) exists with another spec: "
            + "; ".join(differing[:4]),
            hint=f"--name OTHER for a further job, or rmux job cancel {known.id} first",
            code="job.exists",
            details={"job": known.id, "differences": differing},
        )
    return known


def _pending(conn: Conn, job_id: JobId) -> tuple[Job, JobProfile]:
    job = jobs.get(conn, job_id)
    if job.state is not JobState.PENDING:
        raise ConflictError(f"job {job_id} is {job.state}, not pending")
    if job.profile_id is None:
        raise ConflictError(f"job {job_id} has no profile yet", hint="rmux profile SPEC")
    return job, profiles.get(conn, job.profile_id)


def _write(
    conn: Conn,
    decisions: Sequence[Decision],
    now: ClusterState,
    ids: IdSource,
    *,
    moves: Sequence[Move] = (),
) -> None:
    _check_revision(conn, now)
    for decision in decisions:
        job = jobs.get(conn, decision.job_id)
        if job.state is not JobState.PENDING or job.desired != "run":
            raise _stale()
    for move in moves:
        if jobs.get(conn, move.job_id).state is not JobState.PLACED:
            raise _stale()
    _apply(conn, decisions, ids, moves=moves)


def _apply(
    conn: Conn, decisions: Sequence[Decision], ids: IdSource, *, moves: Sequence[Move] = ()
) -> None:
    """Carry out decisions made one upon the other, in a transaction that holds the write lock."""
    named: dict[GroupId, GroupId] = {}
    for decision in decisions:
        if decision.assignment is None:
            jobs.set_state(conn, decision.job_id, JobState.PENDING, reason=decision.reason)
            continue
        assignment = _with_real_group(decision.assignment, named)
        named[founded_by(decision.job_id)] = groups.apply(
            conn,
            assignment,
            expected_revision=groups.revision(conn),
            group_id=GroupId(ids("g")),
        )
    for leaves, move in steps(moves):
        if leaves:
            groups.remove_member(conn, move.job_id)
            continue
        named[move.target] = groups.apply(
            conn,
            _with_real_group(move.assignment, named),
            expected_revision=groups.revision(conn),
            group_id=GroupId(ids("g")),
        )


def _with_real_group(assignment: Assignment, named: dict[GroupId, GroupId]) -> Assignment:
    group_id = assignment.group_id
    if group_id is None:
        return assignment
    return replace(assignment, group_id=named.get(group_id, group_id))


def _check_revision(conn: Conn, now: ClusterState) -> None:
    if groups.revision(conn) != now.revision:
        raise _stale()


def _stale() -> ConflictError:
    return ConflictError(
        "the store changed since the decision was made", code="store.stale", hint="try again"
    )


def _until_fresh(attempt: Callable[[], _T]) -> _T:
    for left in reversed(range(ATTEMPTS)):
        try:
            return attempt()
        except ConflictError as error:
            if error.code != "store.stale" or not left:
                raise
    raise _stale()
