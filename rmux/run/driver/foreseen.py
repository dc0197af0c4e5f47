"""What a driver was told comes next on its devices, on its own clock."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rmux.run.messages import Grant
from rmux.run.nexts import Next


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    next: Next
    at_s: float
    start_at_s: float


class Foreseen:
    """Thread-safe. The newest word of each device counts, but the earliest planned start: what a
    message was under way for is missing from its durations."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._lock = threading.Lock()

    def take(self, nexts: Iterable[Next], *, at_s: float) -> None:
        with self._lock:
            for one in nexts:
                before = self._told.get(one.device)
                start_at_s = at_s + one.start_s
                if before is not None:
                    order = (before.next.epoch, before.next.seq)
                    if (one.epoch, one.seq) < order:
                        continue
                    if (one.epoch, one.seq) == order:
                        start_at_s = min(start_at_s, before.start_at_s)
                self._told[one.device] = _Told(next=one, at_s=at_s, start_at_s=start_at_s)

    def after(self, grant: Grant, *, now_s: float) -> Next | None:
        """What comes on the device after this grant, counted from now; None when nothing was
        told."""
        with self._lock:
            told = self._told.get(grant.device)
        if told is None or (told.next.epoch, told.next.seq) != grant.order:
            return None
        aged = told.next.aged(now_s - told.at_s)
        return replace(aged, start_s=max(0.0, told.start_at_s - now_s))
