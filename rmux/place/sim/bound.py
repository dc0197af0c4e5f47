"""What the jobs of a replay would cost at best, re-packed for nothing at every event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Means over the span of a replay, of the jobs that ran at each moment."""

    opt_usd_per_h: float | None
    """Of the cheapest feasible groups; None where that was not found for every event."""
    proven: bool
    """Whether each of them was proven to be the cheapest."""
    lp_usd_per_h: float
    """Nothing is cheaper than this."""
    elapsed_s: float
