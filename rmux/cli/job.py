"""`rmux job`: look at jobs, wait for them, read their logs, cancel them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from rmux.cli import job_logs, job_requests, job_views, job_wait, job_why
from rmux.cli.documents_jobs import CancelList, JobList, PauseList
from rmux.cli.options import DryRun, Limit, session
from rmux.cli.output import Format, Table
from rmux.cli.wiring import open_store
from rmux.errors import NotFoundError, UserError
from rmux.job import JobState

app = typer.Typer(help="Submit, look at, wait for and cancel jobs.")

JobArg = Annotated[str, typer.Argument(metavar="JOB", help="Id, name, or 6 characters of the id.")]
JobArgs = Annotated[
    list[str], typer.Argument(metavar="JOB…", help="Ids or names; - reads them from stdin.")
]
_RECENT = timedelta(hours=24)


@app.command("ls")
def ls(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only jobs in this state (repeatable).")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Only jobs of this group.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also jobs that ended more than 24 h ago.")
    ] = False,
    limit: Limit = 100,
) -> None:
    """List the jobs that are active or ended in the last 24 hours."""
    from rmux.store import groups, jobs

    found = session(ctx)
    states = None if not state else {parse_state(text) for text in state}
    since = None if everything or states else datetime.now(UTC) - _RECENT
    with open_store(found) as store, store.read() as conn:
        of_group = None if group is None else groups.resolve(conn, group)
        items = job_views.records(
            conn,
            jobs.ls(conn, states=states, group=of_group, ended_after=since, limit=limit or None),
            charged=found.out.format not in (Format.TABLE, Format.NAME),
        )
        total = jobs.count(conn, states=states, group=of_group, ended_after=since)
    found.out.emit(
        JobList(items=items, total=total, truncated=len(items) < total),
        table=lambda: job_views.table(items),
        names=[item.id for item in items],
    )
    what = "" if since is None else ", active or ended in the last 24 h (--all for all)"
    more = "; --limit 0 for all" if len(items) < total else ""
    found.out.note(f"{len(items)} of {total} jobs{what}{more}")


@app.command("show")
def show(ctx: typer.Context, job: JobArg) -> None:
    """Show everything about one job."""
    from rmux.store import jobs

    found = session(ctx)
    with open_store(found) as store, store.read() as conn:
        document = job_views.document(conn, jobs.get(conn, jobs.resolve(conn, job)))
    found.out.emit(document, text=lambda: job_views.text(document), names=[document.id])


@app.command("why")
def why(
    ctx: typer.Context,
    job: JobArgs,
    history: Annotated[
        bool, typer.Option("--history", help="Also every change of its state.")
    ] = False,
) -> None:
    """Say why a job is where it is, and what would change that."""
    from rmux.store import jobs

    found = session(ctx)
    with open_store(found) as store:
        with store.read() as conn:
            chosen = [jobs.resolve(conn, text) for text in texts(job)]
        whole = [job_why.explain(store, job_id, history=history) for job_id in chosen]
    found.out.emit(
        job_why.document(whole),
        text=lambda: "\n".join(job_why.text(fields) for fields in whole),
        names=chosen,
    )


@app.command("wait")
def wait(
    ctx: typer.Context,
    job: JobArgs,
    condition: Annotated[
        str,
        typer.Option("--for", metavar="running|done|ended|iter=N", help="What to wait for."),
    ] = "done",
    any_: Annotated[bool, typer.Option("--any/--all", help="One of them, or all.")] = False,
) -> None:
    """Wait until jobs are running, done (succeeded), ended anyhow, or at an iteration.

    Exit 6 as soon as a job ends so that it cannot come any more; 124 when --timeout passes.
    """
    found = session(ctx)
    wanted = job_wait.Condition.parse(condition)
    with open_store(found) as store:
        document = job_wait.wait(store, texts(job), wanted, any_=any_)
    found.out.emit(
        document,
        table=lambda: Table(
            ("ID", "NAME", "STATE", "ITER"),
            [(one.id, one.name, one.state.upper(), one.iteration) for one in document.jobs],
        ),
        names=[one.id for one in document.jobs if one.met],
    )


@app.command("logs")
def logs(
    ctx: typer.Context,
    job: JobArg,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Begin at the last N lines.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of this attempt; default: the last.")
    ] = None,
) -> None:
    """Print what the job's driver printed."""
    from rmux.store import jobs

    found = session(ctx)
    with open_store(found) as store:
        with store.read() as conn:
            job_id = jobs.resolve(conn, job)
        source = job_logs.Source(store, job_id, runs=found.settings.run_dir)
        if source.newest(attempt) is None and not follow:
            raise NotFoundError(f"job {job_id} has no log yet", hint=f"rmux job why {job_id}")
        for line in job_logs.read(source, follow=follow, tail=tail, attempt=attempt):
            found.out.line(line, text=line.line)


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    job: JobArgs,
    now: Annotated[
        bool, typer.Option("--now", help="Without waiting for the end of its iteration.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """End jobs at their next iteration boundary; pending ones at once.

    A job that has ended already is left alone, and that is no failure.
    """
    found = session(ctx)
    with open_store(found) as store:
        requests = job_requests.cancel(store, texts(job), now=now, dry_run=dry_run)
    job_requests.tell(found.out, CancelList(items=requests, dry_run=dry_run))


@app.command("pause")
def pause(ctx: typer.Context, job: JobArgs, dry_run: DryRun = False) -> None:
    """Let jobs stand still from their next iteration on; they keep their places and memory."""
    found = session(ctx)
    with open_store(found) as store:
        requests = job_requests.pause(store, texts(job), dry_run=dry_run)
    job_requests.tell(found.out, PauseList(items=requests, dry_run=dry_run))


@app.command("resume")
def resume(ctx: typer.Context, job: JobArgs, dry_run: DryRun = False) -> None:
    """Let paused jobs go on."""
    found = session(ctx)
    with open_store(found) as store:
        requests = job_requests.resume(store, texts(job), dry_run=dry_run)
    job_requests.tell(found.out, PauseList(items=requests, dry_run=dry_run))


def parse_state(text: str) -> JobState:
    """UserError names the states there are."""
    try:
        return JobState(text.lower())
    except ValueError as error:
        known = ", ".join(state.value for state in JobState)
        raise UserError(f"{text!r} is not a job state", hint=f"one of {known}") from error


def texts(given: list[str]) -> list[str]:
    """The arguments, with '-' replaced by the first word of every line of stdin."""
    found: list[str] = []
    for text in given:
        if text != "-":
            found.append(text)
            continue
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError("- reads jobs from stdin, which is a terminal", hint="name the jobs")
        found.extend(line.split()[0] for line in sys.stdin if line.strip())
    return list(dict.fromkeys(found))
