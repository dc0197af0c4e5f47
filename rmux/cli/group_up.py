"""Bring groups up and down from the command line."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from rmux.cli import group_views
from rmux.cli.group_views import Look
from rmux.cli.options import Session
from rmux.errors import ConflictError, UserError
from rmux.ids import GroupId
from rmux.job import JobState

if TYPE_CHECKING:
    from rmux.run.parent import Served
    from rmux.store.engine import Store

_POLL_S = 0.1
_ENDED = "has nothing to run: all its jobs have ended; --stay waits for later ones"
_RUNNING = {JobState.STARTING, JobState.RUNNING, JobState.PAUSED}


def resolved(store: Store, text: str) -> GroupId:
    """NotFoundError when there is no such group."""
    from rmux.store import groups

    with store.read() as conn:
        return groups.resolve(conn, text)


def check_trigger(text: str) -> None:
    """UserError for what is no trigger of tails."""
    from rmux.run.driver.tail import trigger_of

    trigger_of(text)


def check_flags(group: str | None, flags: Collection[str], *, counts_rounds: bool) -> None:
    """UserError for a command line that asks for one group and for all, or for neither, or for what
    cannot be had together."""
    if group is None and "--all" not in flags:
        raise UserError("no group is named", hint="rmux group up GROUP, or --all; rmux group ls")
    if group is not None and "--all" in flags:
        raise UserError(f"{group} and --all exclude each other", hint="write one of the two")
    if {"--all", "--detach"} <= set(flags):
        raise UserError(
            "--all stays in the foreground", hint="start it from a service manager, or with setsid"
        )
    if "--emulate" in flags and len(flags) > 1:
        raise UserError(
            f"a rehearsal ends by itself: {', '.join(flags)} exclude each other",
            hint="rmux group up GROUP --emulate --rounds 3",
        )
    if counts_rounds and "--emulate" not in flags:
        raise UserError("--rounds is of a rehearsal", hint="add --emulate")


def up_all(session: Session, store: Store, *, stay: bool, tail_trigger: str) -> int:
    """Serve every group of this host until none has a job left; the exit code."""
    from rmux.run import parent

    settings = session.settings
    try:
        return parent.run_every(
            store,
            host=settings.host,
            run_dir=settings.run_dir,
            redis_url=settings.redis_url,
            options=(
                "--heartbeat-s",
                str(settings.heartbeat_s),
                "--lease-s",
                str(settings.lease_s),
                "--tail-trigger",
                tail_trigger,
            ),
            stay=stay,
            stop_timeout_s=settings.grace_s,
            say=lambda text: session.out.note(f"rmux: {text}"),
        )
    except ConflictError as error:
        if error.code != "lease.held":
            raise
        session.out.note(f"every group of {settings.host} is served already: {error.message}")
        return 0


def up(
    session: Session,
    store: Store,
    group_id: GroupId,
    *,
    detach: bool,
    stay: bool,
    tail_trigger: str,
) -> int:
    """The exit code: 0 when its jobs ended, it went down, is detached, or was up already.

    One that is going down is waited for, then brought up again: ConflictError when that takes too
    long.
    """
    from rmux.run import parent

    settings = session.settings
    found = _served(session, store, group_id)
    if found is not None:
        _tell_served(session, group_id, found)
        return 0
    empty = _empty(store, group_id, stay=stay)
    if empty:
        session.out.note(f"{group_id} {empty}")
    if empty == _ENDED:
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
            tail_trigger=tail_trigger,
        )
        session.out.note(f"{group_id} is up on {settings.host}; rmux group watch {group_id}")
        return 0

    def lost_race() -> None:
        now = parent.served(settings.store_url, group_id, host=settings.host)
        if now is not None:
            _tell_served(session, group_id, now)

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
        tail_trigger=tail_trigger,
        on_up=lambda: session.out.note(
            f"{group_id} comes up on {settings.host}; Ctrl-C stops it in order"
        ),
        on_served=lost_race,
    )


def _tell_served(session: Session, group_id: GroupId, found: Served) -> None:
    since = f"{found.since.astimezone():%Y-%m-%d %H:%M:%S %z}"
    session.out.note(f"{group_id} is already up, pid {found.pid}, since {since}")


def _served(session: Session, store: Store, group_id: GroupId) -> Served | None:
    """Who serves the group and goes on doing so."""
    from rmux.run import parent
    from rmux.store import groups

    host = session.settings.host
    deadline_s = time.monotonic() + 2 * session.settings.grace_s
    told = False
    while True:
        with store.read() as conn:
            found = parent.served_in(conn, group_id, host=host)
            desired = groups.get(conn, group_id).desired
        if found is None or desired != "down":
            return found
        if time.monotonic() > deadline_s:
            raise ConflictError(
                f"{group_id} is still stopping, pid {found.pid}",
                code="group.stopping",
                hint=f"rmux group watch {group_id} --until idle",
            )
        if not told:
            session.out.note(f"{group_id} is stopping, pid {found.pid}; waiting for its end")
            told = True
        time.sleep(_POLL_S)


def _empty(store: Store, group_id: GroupId, *, stay: bool) -> str:
    """What there is to say of a group without a job to run; '' with one."""
    from rmux.store import groups, jobs

    with store.read() as conn:
        if groups.get(conn, group_id).members:
            return ""
        if jobs.count(conn, group=group_id) and not stay:
            return _ENDED
    return "has no job yet and waits for one"


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
