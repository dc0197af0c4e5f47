"""`rmux store`: make, migrate and inspect the store."""

from __future__ import annotations

import typer

from rmux import units
from rmux.cli.documents_pools import LeasePart, StoreChange, StoreStatus
from rmux.cli.options import session
from rmux.cli.wiring import open_store
from rmux.clock import SystemClock, boot_id
from rmux.config import display_url

app = typer.Typer(help="Make, migrate and inspect the store.")


@app.command("init")
def init(ctx: typer.Context) -> None:
    """Make the store, or bring an older one to this rmux's schema. Safe to repeat."""
    from rmux.store.engine import Store

    found = session(ctx)
    settings = found.settings
    before = Store.schema_of(settings.store_url, lock_timeout_s=settings.lock_timeout_s)
    store = Store.create(settings.store_url, lock_timeout_s=settings.lock_timeout_s)
    now = store.version()[0] or ""
    store.close()
    _tell(ctx, before, now, made="made" if before is None else "migrated")


@app.command("migrate")
def migrate(ctx: typer.Context) -> None:
    """Bring an existing store to this rmux's schema, all or nothing."""
    from rmux.store.migrate import migrate, open_for_migration

    settings = session(ctx).settings
    store = open_for_migration(settings.store_url, lock_timeout_s=settings.lock_timeout_s)
    try:
        before, now = migrate(store)
    finally:
        store.close()
    _tell(ctx, before, now, made="migrated")


@app.command("status")
def status(ctx: typer.Context) -> None:
    """Show where the store is, its schema, its size, and who holds leases."""
    from rmux.store import status as stored

    found = session(ctx)
    with open_store(found) as store:
        seen = stored.read(store, now_s=SystemClock().now_s(), boot_id=boot_id())
    document = StoreStatus(
        url=display_url(found.settings.store_url),
        backend=seen.backend,
        schema_revision=seen.schema_revision,
        written_by=seen.written_by,
        revision=seen.revision,
        size_bytes=seen.size_bytes,
        wal_bytes=seen.wal_bytes,
        jobs=seen.num_jobs,
        active_jobs=seen.num_active_jobs,
        groups=seen.num_groups,
        events=seen.num_events,
        leases=tuple(
            LeasePart(name=lease.name, owner=lease.owner, epoch=lease.epoch, live=live)
            for lease, live in seen.leases
        ),
    )
    found.out.emit(document, text=lambda: _text(document))


def _tell(ctx: typer.Context, before: str | None, now: str, *, made: str) -> None:
    found = session(ctx)
    url = display_url(found.settings.store_url)
    changed = before != now
    found.out.emit(
        StoreChange(url=url, before=before, now=now, changed=changed),
        text=f"{made} {url}, schema {now}" if changed else f"{url} is at schema {now} already",
    )


def _text(seen: StoreStatus) -> str:
    wal = "" if seen.wal_bytes is None else f" + {units.format_bytes(seen.wal_bytes)} log"
    lines = [
        f"store     {seen.url}",
        f"schema    {seen.schema_revision}, written by rmux {seen.written_by}",
        f"size      {units.format_bytes(seen.size_bytes)}{wal}",
        f"revision  {seen.revision}",
        f"jobs      {seen.jobs}, {seen.active_jobs} of them active",
        f"groups    {seen.groups}",
        f"events    {seen.events}",
    ]
    for lease in seen.leases:
        mark = "" if lease.live else " (expired)"
        lines.append(f"lease     {lease.name} epoch {lease.epoch}: {lease.owner}{mark}")
    return "\n".join(lines)
