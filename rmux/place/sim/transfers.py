"""Syncs in flight over the slow links, which all groups share max-min fairly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rmux.cluster import Link
from rmux.ids import JobId

Key = tuple[JobId, int, int]
"""Job, iteration, and which life of the job."""

_SLACK = 1e-6
"""Milliseconds of work that rounding may leave over."""


@dataclass(slots=True)
class _Transfer:
    cap_bps: float
    """What it sends at when nobody else is on the link."""
    left_ms: float
    """Time it still needs at that rate."""
    speed: float = 1.0
    """Rate now ÷ `cap_bps`."""


class SharedLink:
    """One link in virtual time, integer milliseconds."""

    def __init__(self, link: Link) -> None:
        self._rate_bps = link.rate_bps
        self._transfers: dict[Key, _Transfer] = {}
        self._at_ms = 0

    def start(self, key: Key, *, now_ms: int, alone_ms: int, size_bytes: int) -> None:
        """A transfer of at least a byte and a millisecond: `alone_ms` at its own rate, longer where
        the link has less."""
        self._advance(now_ms)
        cap_bps = 8000.0 * size_bytes / alone_ms
        self._transfers[key] = _Transfer(cap_bps=cap_bps, left_ms=float(alone_ms))
        self._share()

    def stop(self, key: Key, *, now_ms: int) -> None:
        """The transfer is over, or given up."""
        self._advance(now_ms)
        if self._transfers.pop(key, None) is not None:
            self._share()

    def next_end(self) -> tuple[int, Key] | None:
        """(instant, key) of the transfer that ends first if nothing changes."""
        if not self._transfers:
            return None
        ends = ((self._end_ms(one), n, key) for n, (key, one) in enumerate(self._transfers.items()))
        end_ms, _, key = min(ends, key=lambda item: item[:2])
        return end_ms, key

    def _end_ms(self, one: _Transfer) -> int:
        return self._at_ms + max(0, math.ceil(one.left_ms / one.speed - _SLACK))

    def _advance(self, now_ms: int) -> None:
        for one in self._transfers.values():
            one.left_ms = max(0.0, one.left_ms - (now_ms - self._at_ms) * one.speed)
        self._at_ms = now_ms

    def _share(self) -> None:
        """Max-min: who wants less than the fair share gets it, the others share what is left."""
        left_bps, waiting = self._rate_bps, len(self._transfers)
        for one in sorted(self._transfers.values(), key=lambda one: one.cap_bps):
            rate_bps = min(one.cap_bps, left_bps / waiting)
            one.speed = 1.0 if rate_bps == one.cap_bps else rate_bps / one.cap_bps
            left_bps -= rate_bps
            waiting -= 1
