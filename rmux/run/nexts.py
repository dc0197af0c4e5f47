"""What comes on a device after the phase that holds it, told in durations: clocks differ by host.

Each is counted from the sending of its message. Whoever passes it on takes off the time it stayed
with him; a message that was long under way says too much, so of several the least is believed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LEAST_CHANGE_S = 0.2
_CHANGE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """Of the grant (epoch, seq) on the device."""

    device: str
    epoch: int
    seq: int
    job: str = ""
    """Who is next there; empty when nobody else is."""
    waits: bool = False
    """It wants the device already."""
    ready_s: float | None = None
    """Until it wants the device, by the plan of what it does now; None when that is not known."""
    start_s: float
    """Until its planned start, in the worst case of what holds the device now."""

    def aged(self, seconds: float) -> Next:
        """The same, so much later."""
        ready_s = None if self.ready_s is None else max(0.0, self.ready_s - seconds)
        return dataclasses.replace(self, ready_s=ready_s, start_s=max(0.0, self.start_s - seconds))


def is_news(before: Any, after: Any, *, elapsed_s: float) -> bool:
    """Whether a message differs from the one sent `elapsed_s` ago by more than time going by.

    Both are of one kind, with `nexts`; `before` is None when none was sent.
    """
    if before is None or dataclasses.replace(before, nexts=after.nexts) != after:
        return True
    known: Sequence[Next] = before.nexts
    return len(known) != len(after.nexts) or any(
        _differ(old.aged(elapsed_s), new) for old, new in zip(known, after.nexts, strict=True)
    )


def _differ(old: Next, new: Next) -> bool:
    plain = dataclasses.replace(old, ready_s=new.ready_s, start_s=new.start_s)
    return (
        plain != new
        or (old.ready_s is None) != (new.ready_s is None)
        or _far(old.ready_s or 0.0, new.ready_s or 0.0)
        or _far(old.start_s, new.start_s)
    )


def _far(old_s: float, new_s: float) -> bool:
    return abs(old_s - new_s) > max(_LEAST_CHANGE_S, _CHANGE * new_s)
