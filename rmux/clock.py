"""Time, injected: durations are monotonic seconds, instants are UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds since the host booted: comparable between processes of one host."""

    def utc_now(self) -> datetime: ...

    def sleep_s(self, duration_s: float) -> None: ...


class SystemClock:
    """CLOCK_BOOTTIME goes on while the host sleeps, so a lease cannot outlive its holder there."""

    def now_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(max(0.0, duration_s))


class ManualClock:
    """Moves only when told to: for tests and the simulator."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(self._now_s, UTC)

    def sleep_s(self, duration_s: float) -> None:
        self._now_s += max(0.0, duration_s)


def boot_id() -> str:
    """Names this boot of this host; with a pid and its start time it names a process for good."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def to_rfc3339(instant: datetime) -> str:
    """'2026-11-29T15:41:07.120Z': UTC, milliseconds."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
