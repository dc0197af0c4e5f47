"""One settle pass that is killed at a point: python settle_killed.py URL decided|commit|NUMBER.

`decided`: everything is decided and nothing written; a number: so many rows are written and not
committed; `commit`: all of them are.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import sqlalchemy as sa

from rmux.ids import fresh_id
from rmux.place import service
from rmux.store.engine import Store


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, point: str) -> None:
    store = Store.open(url)
    if point == "decided":
        store.write = die  # type: ignore[assignment,method-assign]
    elif point == "commit":
        sa.event.listen(store.engine, "after_cursor_execute", lambda *args: seen.append(args[2]))
        sa.event.listen(store.engine, "commit", lambda conn: die() if wrote() else None)
    else:
        sa.event.listen(
            store.engine,
            "after_cursor_execute",
            lambda *args: (seen.append(args[2]), die() if len(writes()) == int(point) else None),
        )
    service.settle_pending(store, ids=fresh_id)


seen: list[str] = []


def writes() -> list[str]:
    return [one for one in seen if one.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE"))]


def wrote() -> bool:
    return bool(writes())


if __name__ == "__main__":
    main(*sys.argv[1:])
