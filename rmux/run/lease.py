"""A lease that its process holds: taken from the dead at once, renewed behind the loop."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from rmux.clock import SystemClock, boot_id
from rmux.errors import ConflictError, UnreachableError, UserError
from rmux.run.processes import ProcessId, is_alive, this_process

if TYPE_CHECKING:
    from rmux.store.engine import Store
    from rmux.store.leases import Lease

logger = logging.getLogger(__name__)


def owner_name(host: str) -> str:
    """This process as a holder of leases: 'host boot:pid:start'."""
    return f"{host} {this_process()}"


def holder(owner: str) -> tuple[str, ProcessId] | None:
    """Host and process of a holder; None when the text names none."""
    host, _, process = owner.rpartition(" ")
    try:
        return host, ProcessId.parse(process)
    except UserError:
        return None


def is_dead(owner: str, *, host: str) -> bool:
    """Whether the holder is known to be dead: it ran on this host and does not any more."""
    found = holder(owner)
    return found is not None and found[0] == host and not is_alive(found[1])


class HeldLease:
    """Made by `take`. Its holder acts only while `is_safe`, which ends at 2/3 of the lease."""

    def __init__(self, store: Store, lease: Lease, *, ttl_s: float, taken_s: float) -> None:
        self._store, self._lease, self._ttl_s = store, lease, ttl_s
        self._renewed_s = taken_s
        self._stopped = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, store: Store, name: str, *, host: str, ttl_s: float) -> HeldLease:
        """ConflictError (`lease.held`) when somebody alive has it."""
        from rmux.store import leases

        # Counted from before the store wrote it: never longer than the store counts.
        taken_s = time.monotonic()
        with store.write() as conn:
            found = leases.get(conn, name)
            if found is not None and is_dead(found.owner, host=host):
                leases.break_dead(conn, name, found.owner)
            lease = leases.take(
                conn,
                name,
                owner=owner_name(host),
                ttl_s=ttl_s,
                now_s=SystemClock().now_s(),
                boot_id=boot_id(),
            )
        return cls(store, lease, ttl_s=ttl_s, taken_s=taken_s)

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    @property
    def is_safe(self) -> bool:
        """Whether nobody else can have it, by this process's own clock."""
        return not self.is_lost and time.monotonic() < self._renewed_s + self._ttl_s * 2 / 3

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def release(self) -> None:
        from rmux.store import leases

        self._stopped.set()
        # A renewal under way would find the lease released, or its store closed.
        self._thread.join(timeout=2 * self._store.lock_timeout_s)
        try:
            with self._store.write() as conn:
                leases.release(conn, self._lease)
        except UnreachableError as error:
            logger.warning("lease %s runs out by itself: %s", self._lease.name, error.message)

    def _loop(self) -> None:
        from rmux.store import leases

        while not self._stopped.wait(self._ttl_s / 5):
            begun_s = time.monotonic()
            try:
                with self._store.write() as conn:
                    now_s = SystemClock().now_s()
                    self._lease = leases.renew(conn, self._lease, ttl_s=self._ttl_s, now_s=now_s)
                self._renewed_s = begun_s
            except UnreachableError as error:
                logger.warning("lease %s not renewed: %s", self._lease.name, error.message)
            except ConflictError as error:
                if not self._stopped.is_set():
                    logger.error("%s", error.message)
                    self._lost.set()
                return
