"""Carry out what users ask of jobs, and give what comes free to the jobs that wait."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmux.cli.documents_jobs import CancelList, JobRequest, PauseList
from rmux.cli.job_views import state_text
from rmux.cli.output import Output, Table
from rmux.clock import SystemClock, boot_id
from rmux.ids import JobId, fresh_id

if TYPE_CHECKING:
    from rmux.store.engine import Conn, Store
    from rmux.store.requests import Request

Ask = Callable[["Conn", JobId], "Request"]


def cancel(
    store: Store, texts: Sequence[str], *, now: bool, dry_run: bool = False
) -> tuple[JobRequest, ...]:
    """End jobs; NotFoundError and UserError before any is touched."""
    from rmux.store import requests

    now_s, boot, user = SystemClock().now_s(), boot_id(), getpass.getuser()

    def ask(conn: Conn, job_id: JobId) -> Request:
        return requests.cancel(conn, job_id, now=now, now_s=now_s, boot_id=boot, by=user)

    return _ask(store, texts, ask, dry_run=dry_run)


def pause(store: Store, texts: Sequence[str], *, dry_run: bool = False) -> tuple[JobRequest, ...]:
    """ConflictError when one of them is ending or has ended."""
    from rmux.store import requests

    return _ask(store, texts, requests.pause, dry_run=dry_run)


def resume(store: Store, texts: Sequence[str], *, dry_run: bool = False) -> tuple[JobRequest, ...]:
    """ConflictError when one of them is ending or has ended."""
    from rmux.store import requests

    return _ask(store, texts, requests.resume, dry_run=dry_run)


def tell(out: Output, document: CancelList | PauseList) -> None:
    """The jobs as they are now, and whether that is new."""
    rows = [
        (one.id, one.name, state_text(one.state, one.desired), "yes" if one.changed else "no")
        for one in document.items
    ]
    out.emit(
        document,
        table=Table(("ID", "NAME", "STATE", "CHANGED"), rows),
        names=[one.id for one in document.items if one.changed],
    )


def _ask(store: Store, texts: Sequence[str], ask: Ask, *, dry_run: bool) -> tuple[JobRequest, ...]:
    """All of them in one transaction; with `dry_run` it is undone."""
    from rmux.store import jobs

    with store.write(dry_run=dry_run) as conn:
        found = [ask(conn, job_id) for job_id in [jobs.resolve(conn, text) for text in texts]]
    if not dry_run and any(one.freed for one in found):
        from rmux.place import service

        service.settle_pending(store, ids=fresh_id)
    return tuple(
        JobRequest(
            id=one.job.id,
            name=one.job.spec.name,
            state=one.job.state.value,
            desired=one.job.desired,
            changed=one.changed,
        )
        for one in found
    )
