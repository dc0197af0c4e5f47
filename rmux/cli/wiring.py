"""The composition root: settings to store, channel and probe, each loaded when used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmux.cli.options import Session
from rmux.ids import IdSource, fresh_id

if TYPE_CHECKING:
    from rmux.run.probe import GroupProbe
    from rmux.store.engine import Store


@contextmanager
def open_store(session: Session) -> Iterator[Store]:
    """The store of the settings.

    StoreMissingError before `rmux store init`, StoreVersionError, UnreachableError.
    """
    from rmux.store.engine import Store

    settings = session.settings
    store = Store.open(settings.store_url, lock_timeout_s=settings.lock_timeout_s)
    try:
        yield store
    finally:
        store.close()


def ids() -> IdSource:
    """Where new ids come from."""
    return fresh_id


def probe(session: Session, store: Store) -> GroupProbe:
    """Measures a job alone on devices of this host that no group of the store runs on."""
    from rmux.run.probe import GroupProbe

    return GroupProbe(host=session.settings.host, store=store)
