"""Bring groups up and down from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmux.cli import group_views
from rmux.cli.group_views import Look
from rmux.cli.options import Session
from rmux.errors import NotFoundError
from rmux.ids import GroupId
from rmux.job import JobState

if TYPE_CHECKING:
    from rmux.store.engine import Store

_RUNNING = {JobState.STARTING, JobState.RUNNING, JobState.PAUSED}


def resolved(store: Store, text: str) -> GroupId:
    """NotFoundError when there is no such group, or when it is empty by now."""
    from rmux.store import groups

    with store.read() as conn:
        group = groups.get(conn, groups.resolve(conn, text))
    if not group.nodes:
        raise NotFoundError(f"group {group.id} is empty", hint="rmux group ls")
    return group.id


def up(session: Session, group_id: GroupId, *, detach: bool, stay: bool) -> int:
    """The exit code: 0 when its jobs ended, it went down, is detached, or was up already."""
    from rmux.run import parent

    settings = session.settings
    found = parent.served(settings.store_url, group_id, host=settings.host)
    if found is not None:
        since = f"{found.since.astimezone():%Y-%m-%d %H:%M:%S %z}"
        session.out.note(f"{group_id} is already up, pid {found.pid}, since {since}")
        return 0
    if detach:
        parent.detach(
            settings.store_url,
            group_id,
            host=settings.host,
            run_dir=settings.run_dir,
            redis_url=settings.redis_url,
            stay=stay,
            heartbeat_s=settings.heartbeat_s,
            lease_s=settings.lease_s,
            stop_timeout_s=settings.grace_s,
        )
        session.out.note(f"{group_id} is up on {settings.host}; rmux group watch {group_id}")
        return 0
    session.out.note(f"{group_id} comes up on {settings.host}; Ctrl-C stops it in order")
    return parent.run(
        settings.store_url,
        group_id,
        host=settings.host,
        run_dir=settings.run_dir,
        redis_url=settings.redis_url,
        stay=stay,
        heartbeat_s=settings.heartbeat_s,
        lease_s=settings.lease_s,
        stop_timeout_s=settings.grace_s,
    )


def down(session: Session, store: Store, text: str, *, dry_run: bool) -> tuple[Look, bool]:
    """(the group, whether its wish changed). ConfirmationError when jobs run and nobody agreed."""
    from rmux.store import groups, requests

    with store.read() as conn:
        seen = group_views.look(conn, groups.resolve(conn, text))
    running = [job for job in seen.jobs.values() if job.state in _RUNNING]
    if seen.group.desired != "down" and running and seen.lease is not None and not dry_run:
        session.confirm(f"would stop {len(running)} running job{'s'[: len(running) > 1]}")
    with store.write(dry_run=dry_run) as conn:
        _, changed = requests.group_desired(conn, seen.group.id, "down")
        return group_views.look(conn, seen.group.id), changed
