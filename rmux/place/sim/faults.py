"""Failures of a simulation: how often jobs die, and how long that takes to see and to mend."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rmux.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    mtbf_s: float
    """Mean time between two failures of one job, exponential."""
    detect_s: float
    """From the failure to the devices' release; until then the group waits for the job."""
    restart_s: float
    """From there until the job asks for devices again; meanwhile its turns are skipped."""

    def next_ms(self, rng: random.Random) -> int:
        """Time until the next failure, milliseconds."""
        return max(1, round(1000 * rng.expovariate(1.0 / self.mtbf_s)))


def generator(seed: int, job_id: JobId) -> random.Random:
    return random.Random(f"{seed}/failures/{job_id}")
