"""One deadline for a whole transfer, shared by all its steps and threads."""

from __future__ import annotations

import time

from rmux.errors import DeadlineError
from rmux.units import format_duration


class Deadline:
    """`allowed_s` seconds from now; `what` names the work in the error."""

    def __init__(self, allowed_s: float, *, what: str) -> None:
        self.allowed_s = allowed_s
        self.what = what
        self._ends_s = time.monotonic() + allowed_s

    def left_s(self) -> float:
        """Seconds still allowed, more than 0; DeadlineError when there are none."""
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError(
                f"{self.what} was not done in {format_duration(self.allowed_s)}",
                hint="the peer is slow or hung: look at its log, or allow more time",
                details={"allowed_s": self.allowed_s},
            )
        return left_s
