"""The revision counts changes of pools, groups and placements: what a decision was made from."""

from __future__ import annotations

import sqlalchemy as sa

from rmux.errors import ConflictError
from rmux.store.engine import Conn
from rmux.store.schema import meta


def current(conn: Conn) -> int:
    return int(conn.execute(sa.select(meta.c.revision)).scalar_one())


def bump(conn: Conn, *, expected: int | None = None) -> int:
    """The next revision. ConflictError (`store.stale`) when it is not at `expected` any more."""
    found = current(conn)
    if expected is not None and found != expected:
        raise ConflictError(
            f"the store moved from revision {expected} to {found} since the decision was made",
            code="store.stale",
            hint="decide again from the present state",
            details={"expected": expected, "found": found},
        )
    conn.execute(meta.update().values(revision=found + 1))
    return found + 1
