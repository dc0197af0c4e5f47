"""Leases: one holder of a name at a time, told apart by an epoch that only grows.

Judged by the store's clock: a server's own on Postgres; on SQLite the boot-time clock of the one
host there is, whose reboot ends every lease. A holder stops by its own clock well before that.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from rmux.errors import ConflictError
from rmux.store.engine import Conn
from rmux.store.schema import leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    name: str
    owner: str
    epoch: int
    """Grows by one with every change of holder."""
    expires_s: float
    """By the store's clock, seconds."""
    boot_id: str = ""


def take(conn: Conn, name: str, *, owner: str, ttl_s: float, now_s: float, boot_id: str) -> Lease:
    """Hold `name` for `ttl_s`; its holder may take it again and keeps its epoch.

    ConflictError (`lease.held`) names the holder when it is another's. One that expired, was
    released, or was taken before the host's last boot is free.
    """
    now_s = _now_s(conn, now_s)
    row = conn.execute(leases.select().where(leases.c.name == name)).first()
    if row is not None and row.owner not in ("", owner) and _lives(conn, row, now_s, boot_id):
        raise ConflictError(
            f"{name} is held by {row.owner} for {row.expires_s - now_s:.1f} s more",
            code="lease.held",
            details={"lease": name, "holder": row.owner, "epoch": row.epoch},
        )
    changes_hands = row is None or row.owner != owner
    epoch = (0 if row is None else row.epoch) + (1 if changes_hands else 0)
    lease = Lease(name=name, owner=owner, epoch=epoch, expires_s=now_s + ttl_s, boot_id=boot_id)
    _write(conn, lease, new=row is None)
    return lease


def renew(conn: Conn, lease: Lease, *, ttl_s: float, now_s: float) -> Lease:
    """The same lease with a later end. ConflictError (`lease.lost`) when another took it since."""
    expires_s = _now_s(conn, now_s) + ttl_s
    changed = conn.execute(leases.update().where(*_held_by(lease)).values(expires_s=expires_s))
    if changed.rowcount == 0:
        found = get(conn, lease.name)
        raise ConflictError(
            f"{lease.name} is not {lease.owner}'s any more"
            + (f"; {found.owner} has it" if found else ""),
            code="lease.lost",
            details={"lease": lease.name, "holder": found.owner if found else None},
        )
    return Lease(
        name=lease.name,
        owner=lease.owner,
        epoch=lease.epoch,
        expires_s=expires_s,
        boot_id=lease.boot_id,
    )


def release(conn: Conn, lease: Lease) -> bool:
    """Free it for the next holder; False when it was not this holder's any more."""
    changed = conn.execute(leases.update().where(*_held_by(lease)).values(owner="", expires_s=0.0))
    return changed.rowcount == 1


def break_dead(conn: Conn, name: str, owner: str) -> bool:
    """Free the lease of a holder known to be dead; False when it is not that holder's."""
    changed = conn.execute(
        leases.update()
        .where(leases.c.name == name, leases.c.owner == owner)
        .values(owner="", expires_s=0.0)
    )
    return changed.rowcount == 1


def get(conn: Conn, name: str) -> Lease | None:
    """The lease as last written, expired or not; None when nobody has it."""
    row = conn.execute(leases.select().where(leases.c.name == name, leases.c.owner != "")).first()
    return None if row is None else _lease(row)


def live(conn: Conn, name: str, *, now_s: float, boot_id: str) -> Lease | None:
    """The lease if its holder still has it now."""
    row = conn.execute(leases.select().where(leases.c.name == name, leases.c.owner != "")).first()
    if row is None or not _lives(conn, row, _now_s(conn, now_s), boot_id):
        return None
    return _lease(row)


def ls(conn: Conn) -> list[Lease]:
    """Every lease that somebody has, by name."""
    query = leases.select().where(leases.c.owner != "").order_by(leases.c.name)
    return [_lease(row) for row in conn.execute(query)]


def _now_s(conn: Conn, now_s: float) -> float:
    if conn.dialect.name == "sqlite":
        return now_s
    return float(conn.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())


def _lives(conn: Conn, row: sa.Row[tuple[object, ...]], now_s: float, boot_id: str) -> bool:
    if row.expires_s <= now_s:
        return False
    return conn.dialect.name != "sqlite" or bool(row.boot_id == boot_id)


def _held_by(lease: Lease) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        leases.c.name == lease.name,
        leases.c.owner == lease.owner,
        leases.c.epoch == lease.epoch,
    )


def _lease(row: sa.Row[tuple[object, ...]]) -> Lease:
    return Lease(
        name=row.name,
        owner=row.owner,
        epoch=row.epoch,
        expires_s=row.expires_s,
        boot_id=row.boot_id,
    )


def _write(conn: Conn, lease: Lease, *, new: bool) -> None:
    values = {
        "owner": lease.owner,
        "epoch": lease.epoch,
        "expires_s": lease.expires_s,
        "boot_id": lease.boot_id,
    }
    if new:
        conn.execute(leases.insert().values(name=lease.name, **values))
    else:
        conn.execute(leases.update().where(leases.c.name == lease.name).values(values))
