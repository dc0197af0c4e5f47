"""Drift on the store: what the journal says of phases, who is at risk, a job placed anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rmux.clock import SystemClock
from rmux.estimate import ProfileSource
from rmux.events import EventType, PhaseEvent
from rmux.group import ClusterState, CoExecGroup, Member
from rmux.ids import IdSource, ProfileId
from rmux.job import JobState
from rmux.place.drift import WINDOW, Observed, Reading, Tracker, at_risk
from rmux.place.settle import Readmission
from rmux.store import events, groups, jobs, profiles
from rmux.store.engine import Conn

SOURCE = "placer"
"""Who tells of promises at risk; whoever does holds the write lock, so its numbers are in order."""
_MOST_EVENTS = 10_000


def observed(conn: Conn, now: ClusterState) -> Observed:
    """What the journal says of every member's phases; nothing where the policy does not track."""
    quantile = now.cluster.policy.drift_quantile
    if quantile <= 0:
        return {}
    tracker = Tracker(quantile=quantile)
    for group in now.groups:
        ends = events.latest(
            conn, group=group.id, types=[EventType.PHASE_END], limit=_wanted(group)
        )
        members = {member.job_id for member in group.members}
        tracker.take(event for event in ends if event.job_id in members)
    return tracker.observed()


def untold(conn: Conn, now: ClusterState, seen: Observed) -> tuple[PhaseEvent, ...]:
    """Promises that came to be at risk since that was last told, or no longer are; not numbered."""
    if now.cluster.policy.drift_quantile <= 0:
        return ()
    risks = {reading.job_id: reading for reading in at_risk(now, seen)}
    news = []
    for group in now.groups:
        for member in group.members:
            told = events.latest(conn, job=member.job_id, types=[EventType.SLO_RISK], limit=1)
            before = set(told[-1].data["broken"]) if told else set()
            reading = risks.get(member.job_id)
            broken = _broken(reading)
            if set(broken) != before:
                news.append(_event(group, member, reading, broken))
    return tuple(news)


def tell(conn: Conn, news: Iterable[PhaseEvent]) -> None:
    """Append events in a transaction that holds the write lock."""
    last_n = events.last_source_n(conn, SOURCE)
    events.append(
        conn, [replace(event, source_n=last_n + n) for n, event in enumerate(news, start=1)]
    )


def admit_again(conn: Conn, again: Readmission, ids: IdSource) -> bool:
    """Plan the job with what was seen of it, and put it where the decision says.

    It keeps its state: its controller sees that its devices are others, ends its driver at the next
    iteration and starts it there. False, with nothing written, when the job has ended meanwhile.
    """
    assignment = again.decision.assignment
    job = jobs.get(conn, again.broken.job_id)
    if assignment is None or job.state.is_terminal or job.desired not in ("run", "pause"):
        return False
    profile = replace(
        again.broken.profile,
        id=ProfileId(ids("p")),
        source=ProfileSource.MEASURED,
        created_at=SystemClock().utc_now(),
    )
    profiles.save(conn, profile)
    jobs.update(conn, job.id, profile_id=profile.id)
    groups.apply(
        conn,
        assignment,
        expected_revision=groups.revision(conn),
        group_id=again.broken.group_id,
    )
    if job.state is not JobState.PLACED:
        jobs.set_state(conn, job.id, job.state)
    return True


def _wanted(group: CoExecGroup) -> int:
    """Ends of so many iterations: a rollout and a train tell one per device, a sync one."""
    per_iteration = sum(len(member.placement.devices) + 1 for member in group.members)
    return min(_MOST_EVENTS, (WINDOW + 1) * max(1, per_iteration))


def _broken(reading: Reading | None) -> list[str]:
    if reading is None:
        return []
    sorts = (("absolute", reading.breaks_absolute), ("relative", reading.breaks_relative))
    return [name for name, breaks in sorts if breaks]


def _event(
    group: CoExecGroup, member: Member, reading: Reading | None, broken: Sequence[str]
) -> PhaseEvent:
    clock = SystemClock()
    data: dict[str, object] = {"broken": list(broken), "slo": member.slo}
    if reading is not None:
        data |= {
            "iteration_s": reading.iteration_s,
            "absolute": reading.absolute,
            "relative": reading.relative,
        }
    return PhaseEvent(
        type=EventType.SLO_RISK,
        at=clock.utc_now(),
        at_s=clock.now_s(),
        source=SOURCE,
        source_n=0,
        group_id=group.id,
        job_id=member.job_id,
        data=data,
    )
