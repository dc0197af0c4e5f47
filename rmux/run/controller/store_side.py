"""The controller's threads towards the store: what the group is, what is written, who is placed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rmux.errors import ConflictError, RmuxError
from rmux.events import EventType
from rmux.ids import GroupId, JobId, fresh_id
from rmux.run.controller.state import (
    AppendEvents,
    GroupView,
    MemberView,
    RemoveMember,
    SetState,
    UpdateJob,
)
from rmux.run.journal import Operation
from rmux.run.lease import HeldLease
from rmux.run.messages import Grant

if TYPE_CHECKING:
    from rmux.store.engine import Conn, Store

logger = logging.getLogger(__name__)

POLL_S = 0.2
_PLACE_EVERY_S = 5.0
_PLACER_TTL_S = 60.0
_CLOSE_S = 5.0
_LOOK_BACK = 2000
"""Grants and releases read again by a new controller."""


def read_group(store: Store, group_id: GroupId, *, first: bool = False) -> GroupView:
    """The group now; the `first` time with what earlier controllers journaled."""
    from rmux.store import events, groups, jobs

    with store.read() as conn:
        group = groups.get(conn, group_id)
        views = [
            MemberView(job=jobs.get(conn, member.job_id), member=member) for member in group.members
        ]
        counts: dict[JobId, int] = {}
        open_grants: tuple[Grant, ...] = ()
        if first:
            open_grants = _open_grants(conn, group_id)
            for view in views:
                found = events.read(conn, job=view.job.id, types=[EventType.JOB_STATE])
                counts[view.job.id] = sum(
                    event.data.get("code") == "job.restarting" for event in found
                )
        had_member = bool(views) or jobs.count(conn, group=group_id) > 0
    return GroupView(
        members=tuple(views),
        nodes=group.nodes,
        desired=group.desired,
        turns=group.turns,
        failures=counts,
        had_member=had_member,
        open_grants=open_grants,
    )


def _open_grants(conn: Conn, group_id: GroupId) -> tuple[Grant, ...]:
    """The newest grant of each device, where no release follows it."""
    from rmux.store import events

    types = [EventType.GRANT, EventType.RELEASED]
    given: dict[str, Grant] = {}
    released: set[tuple[str, int, int]] = set()
    for event in events.latest(conn, group=group_id, types=types, limit=_LOOK_BACK):
        order = (str(event.device), int(event.data["epoch"]), int(event.data["seq"]))
        if event.type is EventType.RELEASED:
            released.add(order)
            continue
        grant = Grant(
            device=order[0],
            epoch=order[1],
            seq=order[2],
            job=str(event.job_id),
            attempt=int(event.data["attempt"]),
            iteration=event.iteration or 0,
            phase=str(event.phase or ""),
            bound_s=0.0,
        )
        if order[0] not in given or grant.order > given[order[0]].order:
            given[order[0]] = grant
    return tuple(
        grant for grant in given.values() if (grant.device, grant.epoch, grant.seq) not in released
    )


def follow_group(
    store: Store, group_id: GroupId, *, post: Callable[[GroupView], None], stopped: threading.Event
) -> None:
    """A thread's loop: post the group at once and whenever it changed."""
    from rmux.store import groups

    before: GroupView | None = None
    seen: tuple[Any, ...] | None = None
    while not stopped.is_set():
        try:
            with store.read() as conn:
                now = groups.fingerprint(conn, group_id)
            if now == seen:
                stopped.wait(POLL_S)
                continue
            view = read_group(store, group_id, first=before is None)
            seen = now
        except RmuxError as error:
            logger.warning("cannot read the group: %s", error.message)
        else:
            if before is None or _plan(view) != _plan(before):
                post(view)
            before = view
        stopped.wait(POLL_S)


def _plan(view: GroupView) -> tuple[object, ...]:
    """What the controller acts on when it changes."""
    return view.members, view.nodes, view.desired, view.turns


def to_operations(
    operations: Sequence[AppendEvents | SetState | UpdateJob | RemoveMember],
) -> list[Operation]:
    return [_to_operation(operation) for operation in operations]


def _to_operation(operation: AppendEvents | SetState | UpdateJob | RemoveMember) -> Operation:
    from rmux.store import events, groups, jobs

    def write(conn: Conn) -> None:
        if isinstance(operation, AppendEvents):
            events.append(conn, operation.events)
        elif isinstance(operation, UpdateJob):
            jobs.update(conn, operation.job_id, **dict(operation.columns))
        elif isinstance(operation, RemoveMember):
            groups.remove_member(conn, operation.job_id)
        else:
            jobs.set_state(
                conn,
                operation.job_id,
                operation.state,
                reason=operation.reason,
                error=operation.error,
                ended_at=operation.ended_at,
            )

    return write


class Placer:
    """Places pending jobs every few seconds and after departures, if nobody else does now."""

    def __init__(self, store: Store, *, host: str, every_s: float = _PLACE_EVERY_S) -> None:
        self._store, self._host, self._every_s = store, host, every_s
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="placer", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Capacity has changed."""
        self._wanted.set()

    def close(self, *, last: bool) -> None:
        """With `last`, place once more: nobody may be there to do it later."""
        self._stopped.set()
        self._wanted.set()
        self._thread.join(timeout=_CLOSE_S)
        if last and not self._thread.is_alive():
            self._place()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            self._wanted.wait(self._every_s)
            self._wanted.clear()
            if not self._stopped.is_set():
                self._place()

    def _place(self) -> None:
        from rmux.place.service import settle_pending

        try:
            lease = HeldLease.take(self._store, "placer", host=self._host, ttl_s=_PLACER_TTL_S)
        except ConflictError:
            return
        except RmuxError as error:
            logger.warning("cannot place now: %s", error.message)
            return
        try:
            settle_pending(self._store, ids=fresh_id)
        except RmuxError as error:
            logger.warning("placing failed: %s", error.message)
        finally:
            lease.release()
