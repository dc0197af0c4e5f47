"""Requests that a living worker forgot: no token for a stated time while others got theirs.

One that waits for room in the KV cache looks the same from here; its worker is asked about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmux.errors import BackendError

_LOOK_AT_MOST_S = 1.0
"""Counted per look: time in which nobody looked says nothing about the workers."""
_ALIVE = 0.1
"""Others must have got tokens for so much of the lease after it stalled: a host that stood still
stops all of them at once."""


@dataclass(slots=True)
class _Entry:
    tokens: int
    at_s: float
    """When the last token came, in time watched."""
    renewals: int = 0


class Lease:
    """Of each request that a worker serves: `lease_s` without progress ends it, `max_renewals`
    times at most."""

    def __init__(self, *, lease_s: float = 60.0, max_renewals: int = 2) -> None:
        self.lease_s = lease_s
        self._max_renewals = max_renewals
        self._watched_s = 0.0
        self._progress_s = 0.0
        self._entries: dict[int, _Entry] = {}

    def overdue(self, served: Mapping[int, int], *, watched_s: float) -> list[int]:
        """Keys to ask for again, given the tokens of each served response and the time since the
        last look. BackendError 'fleet.lease' for one that stalled too often."""
        self._watched_s += min(watched_s, _LOOK_AT_MOST_S)
        for key in [each for each in self._entries if each not in served]:
            # It ended, which is progress, or waits for its turn once more.
            del self._entries[key]
            self._progress_s = self._watched_s
        for key, tokens in served.items():
            entry = self._entries.setdefault(key, _Entry(tokens, self._watched_s))
            if entry.tokens != tokens:
                entry.tokens, entry.at_s = tokens, self._watched_s
                self._progress_s = self._watched_s
        return [key for key, entry in self._entries.items() if self._is_overdue(key, entry)]

    def excuse(self, key: int) -> None:
        """It waits by right, so this time does not count."""
        self._entries[key].renewals -= 1

    def _is_overdue(self, key: int, entry: _Entry) -> bool:
        if self._watched_s - entry.at_s <= self.lease_s:
            return False
        if self._progress_s - entry.at_s < _ALIVE * self.lease_s:
            return False
        if entry.renewals == self._max_renewals:
            raise BackendError(
                f"request {key} made no progress for {self.lease_s:g} s, {entry.renewals + 1} "
                f"times, while others did; it has {entry.tokens} tokens",
                code="fleet.lease",
                details={"key": key, "tokens": entry.tokens},
            )
        entry.renewals += 1
        entry.at_s = self._watched_s
        return True
