"""One job of a replay: when it comes, how long it is there, what placement needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

from rmux.estimate import JobProfile
from rmux.ids import JobId
from rmux.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    id: JobId
    arrival_s: float
    """Since the begin of the replay."""
    duration_s: float
    """How long it runs alone; a replay says whether sharing stretches it."""
    spec: JobSpec
    profile: JobProfile
    kind: str = ""
    """What it was drawn from, such as 'rollout-heavy/M'."""

    @property
    def solo_s(self) -> float:
        """Planned seconds per iteration alone."""
        return self.profile.solo_s
