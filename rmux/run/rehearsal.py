"""Rehearse a group: its plan on emulated engines, in a store of its own that is thrown away."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rmux import timeline
from rmux.cluster import Cluster
from rmux.errors import UnreachableError, UserError
from rmux.events import PhaseEvent
from rmux.group import Assignment, CoExecGroup, Member
from rmux.ids import JobId
from rmux.job import EmulatedSpec, Engine, Job, JobSpec, JobState
from rmux.place.period import Period, period
from rmux.run import parent
from rmux.run.trace_check import Violation, check
from rmux.store import events, groups, jobs, pools, profiles
from rmux.store.engine import Store

WARM_UP = 2
"""Rounds that are run first and not counted: the jobs do not all start at once."""
_MAX_EVENTS = 1_000_000
_ENDLESS = 1_000_000
"""Iterations of each job: all are stopped together, so that none has the devices for itself."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One member's part."""

    member: Member
    error: str
    """Why it failed; '' when it did not."""
    period_s: float | None
    """Seconds per iteration, the median of its counted rounds; None when there was none."""

    def slowdown_of(self, period_s: float | None) -> float | None:
        """Seconds per iteration in the group ÷ those planned alone."""
        solo_s = self.member.solo_s
        return None if period_s is None or solo_s <= 0 else period_s / solo_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    plan: Period
    members: tuple[Rehearsed, ...]
    events: tuple[PhaseEvent, ...]
    violations: tuple[Violation, ...]
    status: int
    """Exit status of the group: not 0 when a signal ended it early."""

    @property
    def period_s(self) -> float | None:
        """A round: median over the members, as they share one."""
        return _median(
            [
                one.period_s * self.plan.order.count(one.member.job_id)
                for one in self.members
                if one.period_s is not None
            ]
        )


def rehearse(group: CoExecGroup, cluster: Cluster, *, rounds: int, host: str) -> Rehearsal:
    """Run the group for `WARM_UP` and `rounds` rounds on this host; call from the main thread.

    Real processes, gates and grants; engines that sleep for what each profile plans, switches
    included and without init. Nothing else is touched, so the group itself may run meanwhile.
    UserError when the group has no member, BackendError without a channel server.
    """
    if not group.members:
        raise UserError(f"group {group.id} has no job to rehearse", code="group.empty")
    folder = Path(tempfile.mkdtemp(prefix="rmux-rehearsal-"))
    url = f"sqlite:///{folder / 'rmux.db'}"
    try:
        store = Store.create(url)
        try:
            _copy(store, group, _all_here(cluster, host))
            over = threading.Event()
            watch = threading.Thread(target=_end_after, args=(store, group, WARM_UP + rounds, over))
            watch.start()
            try:
                status = parent.run(url, group.id, host=host, run_dir=folder / "runs")
            finally:
                over.set()
                watch.join()
            return _outcome(store, group, rounds=rounds, status=status)
        finally:
            store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _all_here(cluster: Cluster, host: str) -> Cluster:
    """Sleeping needs no hardware: nodes of other hosts are rehearsed here as well."""
    return replace(
        cluster,
        pools=tuple(
            replace(pool, nodes=tuple(replace(node, host=host) for node in pool.nodes))
            for pool in cluster.pools
        ),
    )


def _end_after(store: Store, group: CoExecGroup, rounds: int, over: threading.Event) -> None:
    """Take the group down when each of its jobs has run its rounds or has ended."""
    while not over.wait(_POLL_S):
        try:
            with store.read() as conn:
                now = [jobs.get(conn, member.job_id) for member in group.members]
            if all(
                job.iteration >= rounds * group.round.count(job.id) or job.state.is_terminal
                for job in now
            ):
                with store.write() as conn:
                    groups.set_desired(conn, group.id, "down")
                return
        except UnreachableError:
            continue  # locked for long; the next look may find it free


def _copy(store: Store, group: CoExecGroup, cluster: Cluster) -> None:
    """The group again, with the same round, each job from its first iteration."""
    with store.write() as conn:
        pools.save(conn, cluster)
        for number, member in enumerate(group.members):
            profiles.save(conn, member.profile)
            job = Job(
                id=member.job_id,
                spec=_emulated(member),
                spec_hash=member.profile.spec_hash,
                state=JobState.PENDING,
                created_at=datetime.now(UTC),
                profile_id=member.profile.id,
            )
            jobs.insert(conn, job)
            assignment = Assignment(
                job_id=member.job_id,
                group_id=group.id if number else None,
                placement=member.placement,
                added_nodes=() if number else group.nodes,
                turns=group.round,
            )
            expected = groups.revision(conn)
            groups.apply(conn, assignment, expected_revision=expected, group_id=group.id)


def _emulated(member: Member) -> JobSpec:
    profile = member.profile
    return JobSpec(
        name=member.name,
        engine=Engine.EMULATED,
        iterations=_ENDLESS,
        slo=member.slo,
        restart_limit=0,
        emulated=EmulatedSpec(
            init_s=0.0,
            rollout_s=profile.rollout.planned_s,
            train_s=profile.train.planned_s,
            sync_s=profile.off_device_s,
        ),
    )


def _outcome(store: Store, group: CoExecGroup, *, rounds: int, status: int) -> Rehearsal:
    with store.read() as conn:
        found = events.read(conn, group=group.id, limit=_MAX_EVENTS)
        ended = {job.id: job for job in jobs.ls(conn)}
    plan = period(group.members, order=group.round)
    return Rehearsal(
        plan=plan,
        members=tuple(
            Rehearsed(
                member=member,
                error=_error(ended[member.job_id]),
                period_s=_iteration_s(
                    found, member.job_id, per_round=plan.order.count(member.job_id), rounds=rounds
                ),
            )
            for member in group.members
        ),
        events=tuple(found),
        violations=tuple(check(found)),
        status=status,
    )


def _iteration_s(
    found: Sequence[PhaseEvent], job_id: JobId, *, per_round: int, rounds: int
) -> float | None:
    """Of a round's iterations some follow closely and some do not: only whole rounds compare."""
    seconds = timeline.iteration_seconds(found, skip=WARM_UP * per_round).get(job_id, [])
    whole = [
        sum(seconds[start : start + per_round])
        for start in range(0, len(seconds) - per_round + 1, per_round)
    ]
    round_s = _median(whole[:rounds])
    return None if round_s is None else round_s / per_round


def _error(job: Job) -> str:
    return (job.error or job.reason.message) if job.state is JobState.FAILED else ""


def _median(sample: Sequence[float]) -> float | None:
    return statistics.median(sample) if sample else None
