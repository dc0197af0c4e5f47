"""How fast a job goes, read from its recent events."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmux.events import EventType, PhaseEvent

if TYPE_CHECKING:
    from rmux.store.engine import Conn

KINDS = (EventType.ITERATION_END, EventType.PHASE_START)
_WINDOW = 60
"""Events read per job: about fifteen iterations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Medians over the last iterations, seconds; None before the second iteration has ended."""

    period_s: float | None = None
    waited_s: float | None = None
    """Of a period, the part in which the job waited for a device."""

    @property
    def slowdown(self) -> float | None:
        """The period ÷ what it would be without waiting for others."""
        if self.period_s is None or self.waited_s is None or self.waited_s >= self.period_s:
            return None
        return self.period_s / (self.period_s - self.waited_s)

    def planned_slowdown(self, solo_s: float | None) -> float | None:
        """The period ÷ the job's planned period alone."""
        if self.period_s is None or not solo_s:
            return None
        return self.period_s / solo_s


def pace_of(events: Sequence[PhaseEvent]) -> Pace:
    """The pace of one job from its `KINDS` of events, in order."""
    periods, waits = [], []
    last_end_s: float | None = None
    waited_s: dict[str, float] = {}
    for event in events:
        if event.type is EventType.PHASE_START:
            # A phase that tells of each of its devices waited for the last of them.
            phase, wait_s = str(event.phase), float(event.data.get("wait_s") or 0.0)
            waited_s[phase] = max(wait_s, waited_s.get(phase, 0.0))
        elif event.type is EventType.ITERATION_END:
            if last_end_s is not None:
                periods.append(event.at_s - last_end_s)
                waits.append(sum(waited_s.values()))
            last_end_s, waited_s = event.at_s, {}
    if not periods:
        return Pace()
    return Pace(period_s=statistics.median(periods), waited_s=statistics.median(waits))


def read_pace(conn: Conn, job_id: str) -> Pace:
    from rmux.store import events

    return pace_of(events.latest(conn, job=job_id, types=KINDS, limit=_WINDOW))
