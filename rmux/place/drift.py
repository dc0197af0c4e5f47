"""Phase times that leave the plan: what was seen lately, whose promise it breaks, who has to go.

Of each job and phase a quantile of the last seconds seen stands beside what was planned. Strict
cyclic order is monotone: while every phase keeps its plan, every promise is kept. Where these
quantiles make a round too long for some member, the one job whose growth lengthens it most is
admitted again as a new arrival, with what was seen as its worst case; the others stay.

There are two promises to hold an iteration against: the job's worst-case solo time as planned
(absolute: what admission promises), and its solo time as it is now (relative: what a user compares
with). The first is kept by moving a job, the second is only told.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from rmux.errors import UserError
from rmux.estimate import JobProfile, PhaseEstimate
from rmux.events import EventType, PhaseEvent
from rmux.group import ClusterState, CoExecGroup, Member, solo_s
from rmux.ids import GroupId, JobId
from rmux.job import JobSpec, Phase
from rmux.place.admit import admit
from rmux.place.decision import Decision
from rmux.place.period import CLOSE, period

WINDOW = 50
"""Iterations of a job that are looked back on."""
LEAST = 5
"""Of which so many must have been seen before they count."""
SAFETY = 1.05
"""What the job admitted again is planned for, times what was seen: so it is not soon again."""

_PHASES = (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Seconds that a job's phases took of late, without switches; None where too few were seen."""

    rollout_s: float | None = None
    train_s: float | None = None
    sync_s: float | None = None


Observed = Mapping[JobId, Seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What iterations take with the phase times seen, beside what the job accepts."""

    job_id: JobId
    group_id: GroupId
    name: str
    iteration_s: float
    limit: float
    """The largest slowdown it accepts."""
    absolute: float
    """Iteration over worst-case solo time as planned."""
    relative: float
    """Iteration over solo time at the phase times seen."""

    @property
    def breaks_absolute(self) -> bool:
        return self.absolute > self.limit * CLOSE

    @property
    def breaks_relative(self) -> bool:
        return self.relative > self.limit * CLOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The job that explains most of a broken promise, and how it has to be planned from now on."""

    job_id: JobId
    group_id: GroupId
    name: str
    growth: float
    """Largest seen ÷ planned of its phases."""
    profile: JobProfile
    """With what was seen, and some more, as its worst case where that exceeds the plan."""
    reading: Reading
    """Of the member whose promise is broken most."""


class Tracker:
    """The last seconds of every phase of every job. Mutable."""

    def __init__(self, *, quantile: float, window: int = WINDOW, least: int = LEAST) -> None:
        if not 0 < quantile < 1:
            raise UserError(f"a quantile of {quantile:g}; write one such as 0.95")
        if not 1 <= least <= window:
            raise UserError(f"a window of {window} iterations, of which {least} must be seen")
        self.quantile, self.window, self.least = quantile, window, least
        self._seconds: dict[tuple[JobId, Phase], deque[float]] = {}

    def note(self, job_id: JobId, phase: Phase, seconds: float) -> None:
        """One phase has ended. Phases other than rollout, train and sync are not tracked."""
        if phase not in _PHASES:
            return
        seen = self._seconds.get((job_id, phase))
        if seen is None:
            seen = self._seconds[job_id, phase] = deque(maxlen=self.window)
        seen.append(seconds)

    def take(self, events: Iterable[PhaseEvent]) -> None:
        """The ends of phases in a journal, in its order; other events say nothing here.

        A phase on several devices took as long as on the slowest. Only a job's last attempt counts,
        as an earlier one may have run elsewhere; of it not the first iteration, in which engines
        warm up.
        """
        longest: dict[tuple[JobId, Phase, int], float] = {}
        first: dict[JobId, tuple[int, int]] = {}
        for event in events:
            job_id, phase, run_s = event.job_id, event.phase, event.data.get("run_s")
            if event.type is not EventType.PHASE_END or job_id is None or phase is None:
                continue
            if event.iteration is None or not isinstance(run_s, (int, float)):
                continue
            if event.data.get("whole") is False:
                continue  # it had some of its devices for a part of the time
            began = first.setdefault(job_id, (_attempt(event), event.iteration))
            if _attempt(event) > began[0]:
                first[job_id] = began = (_attempt(event), event.iteration)
                longest = {key: run for key, run in longest.items() if key[0] != job_id}
                self.forget(job_id)
            if _attempt(event) == began[0] and event.iteration > began[1]:
                key = (job_id, phase, event.iteration)
                longest[key] = max(longest.get(key, 0.0), float(run_s))
        for (job_id, phase, _), seconds in longest.items():
            self.note(job_id, phase, seconds)

    def forget(self, job_id: JobId) -> None:
        """The job is gone, or its phases are of another kind from now on."""
        for phase in _PHASES:
            self._seconds.pop((job_id, phase), None)

    def seen(self, job_id: JobId) -> Seen:
        rollout_s, train_s, sync_s = (self.quantile_s(job_id, phase) for phase in _PHASES)
        return Seen(rollout_s=rollout_s, train_s=train_s, sync_s=sync_s)

    def observed(self) -> Observed:
        jobs = dict.fromkeys(job_id for job_id, _ in self._seconds)
        return {job_id: self.seen(job_id) for job_id in jobs}

    def quantile_s(self, job_id: JobId, phase: Phase) -> float | None:
        """The least of the seconds seen that the quantile of them do not exceed."""
        seen = self._seconds.get((job_id, phase), ())
        if len(seen) < self.least:
            return None
        return sorted(seen)[max(0, math.ceil(self.quantile * len(seen)) - 1)]


def readings(group: CoExecGroup, observed: Observed) -> tuple[Reading, ...]:
    """Both slowdowns of every member; with the plan where too little was seen."""
    now = _as_seen(group.members, observed)
    found = period(now, order=group.round) if now else None
    return tuple(
        Reading(
            job_id=member.job_id,
            group_id=group.id,
            name=member.name,
            iteration_s=found.iteration_s(member.job_id),
            limit=member.slo,
            absolute=_ratio(found.iteration_s(member.job_id), member.solo_s),
            relative=_ratio(found.iteration_s(member.job_id), _solo_as_seen_s(seen)),
        )
        for member, seen in zip(group.members, now, strict=True)
        if found is not None
    )


def at_risk(state: ClusterState, observed: Observed) -> Iterator[Reading]:
    """The members one of whose two promises is broken at the phase times seen."""
    for group in state.groups:
        for reading in readings(group, observed):
            if reading.breaks_absolute or reading.breaks_relative:
                yield reading


def broken(
    state: ClusterState,
    observed: Observed,
    *,
    staying: Set[JobId] = frozenset(),
    safety: float = SAFETY,
) -> Broken | None:
    """The one job to be admitted again, of the group that breaks a promise most; None when none.

    Its growth lengthens the round most of all that may be moved: those not in `staying`. A job
    alone in its group breaks nobody's promise and has nobody to leave, so it is left where it is.
    """
    found: list[tuple[float, GroupId, Broken]] = []
    for group in state.groups:
        if len(group.members) < 2 or not any(m.job_id in observed for m in group.members):
            continue
        worst = max(readings(group, observed), key=lambda one: one.absolute / one.limit)
        if not worst.breaks_absolute:
            continue
        member = _most_to_blame(group, observed, staying)
        if member is not None:
            one = Broken(
                job_id=member.job_id,
                group_id=group.id,
                name=member.name,
                growth=growth(member, observed.get(member.job_id)),
                profile=_as_asked(member, observed[member.job_id], safety=safety),
                reading=worst,
            )
            found.append((-worst.absolute / worst.limit, group.id, one))
    return min(found, key=lambda item: item[:2])[2] if found else None


def admitted_again(
    state: ClusterState, found: Broken, *, spec: JobSpec, group: GroupId | None = None
) -> Decision:
    """Where the job goes with what was seen of it: as a new arrival, its old place free for it too.

    With `group` only there. Without a place it stays where it is, and the reason says why nowhere
    else.
    """
    groups = tuple(
        replace(group, members=tuple(m for m in group.members if m.job_id != found.job_id))
        if group.id == found.group_id
        else group
        for group in state.groups
    )
    without = replace(state, groups=groups)
    return admit(without, spec=spec, profile=found.profile, job_id=found.job_id, group=group)


def growth(member: Member, seen: Seen | None) -> float:
    """Largest seen ÷ planned of its phases; 1 where nothing was seen. Phases planned to take no
    time are left out."""
    return max((now_s / plan_s for now_s, plan_s in _pairs(member, seen) if plan_s), default=1.0)


def replanned(profile: JobProfile, seen: Seen, *, safety: float = SAFETY) -> JobProfile:
    """The profile with what was seen as worst case, times `safety`, where that exceeds the plan."""

    def longer(estimate: PhaseEstimate, seen_s: float | None) -> PhaseEstimate:
        if seen_s is None or seen_s <= estimate.worst_s:
            return estimate
        return replace(estimate, worst_s=seen_s * safety, expected_s=seen_s)

    sync_s = profile.sync_s
    if seen.sync_s is not None and seen.sync_s > sync_s:
        sync_s = seen.sync_s * safety
    return replace(
        profile,
        rollout=longer(profile.rollout, seen.rollout_s),
        train=longer(profile.train, seen.train_s),
        sync_s=sync_s,
    )


def _as_asked(member: Member, seen: Seen, *, safety: float) -> JobProfile:
    """The new profile, of the train devices that the job asked for."""
    asked = member.asked_profile
    if asked is None:
        return replanned(member.profile, seen, safety=safety)
    given_s = member.profile.train.worst_s
    if seen.train_s is not None and given_s > 0:
        seen = replace(seen, train_s=seen.train_s * asked.train.worst_s / given_s)
    return replanned(asked, seen, safety=safety)


def _most_to_blame(group: CoExecGroup, observed: Observed, staying: Set[JobId]) -> Member | None:
    """Whose phases, if they took no longer than planned, would shorten the round most."""

    def without_growth_s(culprit: Member) -> float:
        kept = {**observed, culprit.job_id: _capped(culprit, observed[culprit.job_id])}
        return period(_as_seen(group.members, kept), order=group.round).period_s

    grown = [
        member
        for member in group.members
        if member.job_id not in staying and _has_grown(member, observed.get(member.job_id))
    ]
    return min(
        grown,
        key=lambda one: (
            without_growth_s(one),
            -growth(one, observed.get(one.job_id)),
            one.job_id,
        ),
        default=None,
    )


def _has_grown(member: Member, seen: Seen | None) -> bool:
    return any(now_s > plan_s * CLOSE for now_s, plan_s in _pairs(member, seen))


def _pairs(member: Member, seen: Seen | None) -> Iterator[tuple[float, float]]:
    """(seen, planned) seconds of each phase that was seen."""
    if seen is None:
        return
    profile = member.profile
    for seen_s, planned_s in (
        (seen.rollout_s, profile.rollout.worst_s),
        (seen.train_s, profile.train.worst_s),
        (seen.sync_s, profile.sync_s),
    ):
        if seen_s is not None:
            yield seen_s, planned_s


def _capped(member: Member, seen: Seen) -> Seen:
    def least(seen_s: float | None, planned_s: float) -> float | None:
        return None if seen_s is None else min(seen_s, planned_s)

    profile = member.profile
    return Seen(
        rollout_s=least(seen.rollout_s, profile.rollout.worst_s),
        train_s=least(seen.train_s, profile.train.worst_s),
        sync_s=least(seen.sync_s, profile.sync_s),
    )


def _as_seen(members: Iterable[Member], observed: Observed) -> list[Member]:
    """The members with what was seen in place of what was planned, switches as planned."""

    def of(member: Member, seen: Seen) -> Member:
        profile = member.profile
        return replace(
            member,
            profile=replace(
                profile,
                rollout=_at(profile.rollout, seen.rollout_s),
                train=_at(profile.train, seen.train_s),
                sync_s=profile.sync_s if seen.sync_s is None else seen.sync_s,
            ),
        )

    return [of(member, observed.get(member.job_id, Seen())) for member in members]


def _at(estimate: PhaseEstimate, seen_s: float | None) -> PhaseEstimate:
    return estimate if seen_s is None else replace(estimate, worst_s=seen_s)


def _solo_as_seen_s(member: Member) -> float:
    """On the train devices it has: what it would take alone now."""
    return solo_s(member.profile, max_staleness=member.max_staleness)


def _attempt(event: PhaseEvent) -> int:
    return int(event.data.get("attempt", 1))


def _ratio(iteration_s: float, alone_s: float) -> float:
    return iteration_s / alone_s if alone_s > 0 else 1.0
