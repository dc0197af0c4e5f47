"""What a simulation has seen of every job's phases lately, and the profile that says so."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from rmux.estimate import JobProfile, PhaseEstimate
from rmux.group import Member
from rmux.ids import JobId


class Observed:
    """The last `window` iterations of each job; estimates are a quantile of them."""

    def __init__(self, *, window: int, quantile: float) -> None:
        self._window, self._quantile = window, quantile
        self._seen: dict[JobId, deque[tuple[int, int]]] = {}

    def note(self, job_id: JobId, rollout_ms: int, train_ms: int) -> None:
        seen = self._seen.get(job_id)
        if seen is None:
            seen = self._seen[job_id] = deque(maxlen=self._window)
        seen.append((rollout_ms, train_ms))

    def forget(self, job_id: JobId) -> None:
        self._seen.pop(job_id, None)

    def estimate_ms(self, job_id: JobId) -> tuple[int, int] | None:
        """Rollout and train with their switches; None before the first iteration."""
        seen = self._seen.get(job_id)
        if not seen:
            return None
        place = max(0, math.ceil(self._quantile * len(seen)) - 1)
        rollout, train = (sorted(column)[place] for column in zip(*seen, strict=True))
        return rollout, train

    def exceeds(self, member: Member, *, tolerance: float) -> bool:
        """Whether a phase takes longer than planned by more than this fraction."""
        found = self.estimate_ms(member.job_id)
        if found is None:
            return False
        profile = member.profile
        planned_s = (profile.rollout.planned_s, profile.train.planned_s)
        pairs = zip(found, planned_s, strict=True)
        return any(ms > 1000 * seconds * (1.0 + tolerance) + 1.0 for ms, seconds in pairs)

    def growth(self, member: Member) -> float:
        """Largest observed ÷ planned of its two phases; 1 before the first iteration."""
        found = self.estimate_ms(member.job_id)
        if found is None:
            return 1.0
        profile = member.profile
        planned_s = (profile.rollout.planned_s, profile.train.planned_s)
        return max(
            ms / 1000 / seconds for ms, seconds in zip(found, planned_s, strict=True) if seconds > 0
        )

    def profile(self, member: Member, *, headroom: float = 1.0) -> JobProfile:
        """The member's profile with what was observed, times `headroom`, in place of what was
        planned."""
        found = self.estimate_ms(member.job_id)
        profile = member.profile
        if found is None:
            return profile
        return replace(
            profile,
            rollout=_as_seen(profile.rollout, headroom * found[0]),
            train=_as_seen(profile.train, headroom * found[1]),
        )


def _as_seen(estimate: PhaseEstimate, seen_ms: float) -> PhaseEstimate:
    seconds = max(0.0, seen_ms / 1000 - estimate.switch_s)
    return replace(estimate, worst_s=seconds, expected_s=seconds)
