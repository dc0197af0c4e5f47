"""Carry out `rmux job cancel`, and give what came free to the jobs that wait."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rmux.cli.documents_jobs import JobCancelled
from rmux.cli.job_views import state_text
from rmux.cli.output import Table
from rmux.clock import SystemClock, boot_id
from rmux.ids import fresh_id

if TYPE_CHECKING:
    from rmux.store.engine import Store
    from rmux.store.requests import Request


def cancel(
    store: Store, texts: Sequence[str], *, now: bool, dry_run: bool = False
) -> list[Request]:
    """All of them in one transaction; with `dry_run` it is undone. NotFoundError, UserError."""
    from rmux.store import jobs, requests

    now_s, boot, user = SystemClock().now_s(), boot_id(), getpass.getuser()
    with store.write(dry_run=dry_run) as conn:
        chosen = [jobs.resolve(conn, text) for text in texts]
        found = [
            requests.cancel(conn, job_id, now=now, now_s=now_s, boot_id=boot, by=user)
            for job_id in chosen
        ]
    if not dry_run and any(one.freed for one in found):
        from rmux.place import service

        service.settle_pending(store, ids=fresh_id)
    return found


def table(items: Iterable[JobCancelled]) -> Table:
    return Table(
        ("ID", "NAME", "STATE", "CHANGED"),
        [
            (one.id, one.name, state_text(one.state, one.desired), "yes" if one.changed else "no")
            for one in items
        ],
    )
