"""Whether any gate still speaks to a driver."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

_ORPHAN_HEARTBEATS = 5


class Silence:
    """For one thread. An orphan goes on with what it was granted: gates come back, or a runner
    ends it."""

    def __init__(self, *, since_s: float, heartbeat_s: float) -> None:
        self._heard_s, self._heartbeat_s = since_s, heartbeat_s
        self._orphaned = False

    def heard(self, *, at_s: float) -> None:
        self._heard_s = at_s

    def note(self, *, now_s: float) -> None:
        """Log when the silence becomes too long, and when it ends."""
        silent_s = now_s - self._heard_s
        orphaned = silent_s > _ORPHAN_HEARTBEATS * self._heartbeat_s
        if orphaned and not self._orphaned:
            log.warning("no gate has spoken for %.1f s; going on", silent_s)
        elif self._orphaned and not orphaned:
            log.info("a gate speaks again")
        self._orphaned = orphaned
