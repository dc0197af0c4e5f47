"""`rmux job submit`: check a spec, profile it, place it and store it, or say why not."""

from __future__ import annotations

import getpass
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmux.cli.options import DryRun, SpecPath, session
from rmux.cli.overrides import Deadline, Name, Priority, TenantName, check_tenant, overridden
from rmux.cli.place import Margin, Rule, Slo, with_slo
from rmux.cli.wiring import ids, open_store
from rmux.errors import ConflictError, InfeasibleError, UserError
from rmux.ids import JobId
from rmux.job import Job, JobSpec, JobState

if TYPE_CHECKING:
    from rmux.cli.documents_place import SubmissionDocument
    from rmux.estimate import JobProfile
    from rmux.place.service import Submission
    from rmux.store.engine import Store

app = typer.Typer(help="Submit a job.")

Key = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="The same key means the same job."),
]
PlacementFile = Annotated[
    str | None,
    typer.Option("--placement", metavar="FILE|-", help="Only as this rmux place --json says."),
]


@app.command("submit")
def submit(
    ctx: typer.Context,
    spec: SpecPath,
    name: Name = None,
    slo: Slo = None,
    tenant: TenantName = None,
    priority: Priority = None,
    deadline: Deadline = None,
    idempotency_key: Key = None,
    placement: PlacementFile = None,
    rule: Rule = None,
    margin: Margin = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job is done.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Check a job, estimate it unless it was profiled, place it and store it.

    A job for which there is no room now stays pending with its reason. Exit 3, and nothing stored,
    for one that can never fit. The same spec again, while its job is not finished, is that job; 5
    when the name or key belongs to another spec.
    """
    from rmux.cli import job_wait
    from rmux.spec import load_spec

    found = session(ctx)
    wanted = overridden(
        with_slo(load_spec(spec), slo),
        name=name,
        tenant=tenant,
        priority=priority,
        deadline=deadline,
    )
    pinned = _pinned(placement) if placement else _Pinned(rule=rule, margin=margin)
    with open_store(found) as store:
        began_s = time.monotonic()
        try:
            done, profile = _submitted(store, wanted, pinned, key=idempotency_key, dry_run=dry_run)
        except InfeasibleError as error:
            error.hint = f"rmux place {spec} --explain"
            raise
        elapsed_s = time.monotonic() - began_s
        document = _document(done, profile, dry_run=dry_run, elapsed_s=elapsed_s)
        found.out.emit(document, text=lambda: _text(done), names=[done.job.id])
        if not done.created:
            found.out.note(_same(done.job, wanted))
        for line in (*_late(done, profile), *_advice(done, dry_run=dry_run)):
            found.out.note(line)
        if wait and not dry_run:
            job_wait.wait(store, [done.job.id], job_wait.Condition.parse("done"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pinned:
    """How to decide; with `--placement` also the state and the spec it was decided for."""

    rule: str | None
    margin: float | None
    revision: int | None = None
    spec_hash: str | None = None


def _submitted(
    store: Store,
    spec: JobSpec,
    pinned: _Pinned,
    *,
    key: str | None,
    dry_run: bool,
) -> tuple[Submission, JobProfile]:
    from rmux.cli import preflight
    from rmux.place import service
    from rmux.profile.service import profile_job
    from rmux.store import pools

    if spec.tenant:
        with store.read() as conn:
            check_tenant(spec.tenant, pools.load(conn).tenants)
    profile = profile_job(store, spec, ids=ids(), save=False)
    if pinned.spec_hash not in (None, profile.spec_hash):
        raise ConflictError("the placement is of another spec", code="place.stale")
    preflight.check(spec, hardware=profile.rollout_hardware)
    job = Job(
        id=JobId(ids()("j")) if key is None else _id_of(key),
        spec=spec,
        spec_hash=profile.spec_hash,
        state=JobState.PENDING,
        created_at=datetime.now(UTC),
        user=_user(),
    )
    done = service.submit(
        store,
        job,
        profile,
        ids=ids(),
        rule=pinned.rule,
        margin=pinned.margin,
        by_name=True,
        revision=pinned.revision,
        dry_run=dry_run,
    )
    return done, profile


def _pinned(path: str) -> _Pinned:
    """Read what `rmux place --json` printed. UserError when it is something else."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        found = json.loads(text)
        if found["schema"] != "rmux.placement/v1":
            raise UserError(f"--placement: {path} holds {found['schema']}, not rmux.placement/v1")
        return _Pinned(
            rule=str(found["rule"]),
            margin=float(found["margin"]),
            revision=int(found["revision"]),
            spec_hash=str(found["spec_hash"]),
        )
    except OSError as error:
        raise UserError(f"--placement: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--placement: {path} is not the output of rmux place --json ({error})"
        ) from error


def _id_of(key: str) -> JobId:
    """The id that belongs to an idempotency key: the store's primary key makes it unique."""
    digest = hashlib.sha256(f"{_user()}\0{key}".encode()).hexdigest()
    return JobId(f"j-{digest[:13]}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no passwd entry, as in some containers
        return ""


def _document(
    done: Submission, profile: JobProfile, *, dry_run: bool, elapsed_s: float
) -> SubmissionDocument:
    from rmux.cli import place_views
    from rmux.cli.documents_jobs import ReasonPart
    from rmux.cli.documents_place import SubmissionDocument

    job = done.job
    return SubmissionDocument(
        dry_run=dry_run,
        created=done.created and not dry_run,
        id=job.id,
        name=job.spec.name,
        state=job.state.value,
        group=job.group_id,
        reason=ReasonPart(code=job.reason.code, message=job.reason.message),
        spec_hash=job.spec_hash,
        placement=None
        if done.decision is None
        else place_views.placement_document(
            done.decision, spec=job.spec, profile=profile, elapsed_s=elapsed_s
        ),
    )


def _text(done: Submission) -> str:
    from rmux.cli import place_views

    job = done.job
    where = f" in {job.group_id}" if job.group_id else ""
    head = f"{job.id} {job.spec.name} {job.state.upper()}{where}"
    if done.decision is None:
        return f"{head} (it was there already)"
    return f"{head}\n{place_views.summary(done.decision)}"


def _same(known: Job, wanted: JobSpec) -> str:
    """That nothing new was made, and what of the spec at hand therefore does not count."""
    from rmux.place import service

    told = f"{known.id} ({known.spec.name}) is not finished and has this spec: no other job is made"
    if differing := service.differences(wanted, known.spec):
        told += f"; it keeps its own {'; '.join(differing[:4])}"
    return f"{told}. --name OTHER makes one"


def _late(done: Submission, profile: JobProfile) -> list[str]:
    """That the job cannot end by its deadline, and when it can."""
    if done.decision is None or not done.job.spec.deadline_s:
        return []
    from rmux.group import PendingJob
    from rmux.place import queue

    job = PendingJob(job=done.job, spec=done.job.spec, profile=profile)
    reason = queue.late(done.decision, job, now=done.job.created_at)
    return [] if reason is None else [f"{reason.code}: {reason.message}"]


def _advice(done: Submission, *, dry_run: bool) -> list[str]:
    job = done.job
    if dry_run:
        return ["dry run: nothing was stored"]
    if job.state is JobState.PENDING:
        return [f"next: rmux job why {job.id}"]
    return [f"next: rmux group up {job.group_id}", f"      rmux job wait {job.id}"]
