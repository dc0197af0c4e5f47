"""Deadlines: when a job would end at a place, and which place ends it in time.

The planned end counts worst-case phases: the device part of init on both pools, then the iterations
that are left, each as long as the group's plan (with the margin where the group is shared). A
deadline never refuses a job and never takes another's place. It only changes which of the places
that admit the job is taken: the cheapest that ends it in time, if the one decided does not.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rmux.estimate import JobProfile
from rmux.group import PendingJob, solo_s
from rmux.ids import JobId
from rmux.job import Job, JobSpec, JobState, Reason
from rmux.place.decision import Candidate, Decision, Verdict
from rmux.place.index_explain import assignment_of
from rmux.units import format_duration


def unsubmitted(spec: JobSpec, profile: JobProfile, *, job_id: JobId, now: datetime) -> PendingJob:
    """The waiting job that a spec would be if it were submitted now."""
    job = Job(
        id=job_id,
        spec=spec,
        spec_hash=profile.spec_hash,
        state=JobState.PENDING,
        created_at=now,
    )
    return PendingJob(job=job, spec=spec, profile=profile)


def remaining_s(job: PendingJob, iteration_s: float) -> float:
    """Planned seconds from its start to the end of its last iteration."""
    left = max(0, job.spec.iterations - job.job.iteration)
    return 2 * job.profile.init_s + left * iteration_s


def finish_s(decision: Decision, candidate: Candidate, job: PendingJob) -> float | None:
    """`remaining_s` at a place; None for one that was refused before it had a period."""
    if candidate.period is None or candidate.verdict is Verdict.REFUSED:
        return None
    shared = len(candidate.slowdowns) > 1
    iteration_s = candidate.period.iteration_s(job.job.id)
    return remaining_s(job, iteration_s * (1 + decision.margin if shared else 1.0))


def earliest_finish_s(decision: Decision, job: PendingJob, *, now: datetime) -> float:
    """Seconds from submission to the earliest end that is feasible: at the fastest of the places
    that admit the job now, else alone from now on."""
    ends = [finish_s(decision, one, job) for one in decision.candidates]
    feasible = [end for end in ends if end is not None]
    alone_s = solo_s(job.profile, max_staleness=job.spec.max_staleness)
    return _age_s(job, now) + min(feasible, default=remaining_s(job, alone_s))


def preferring_deadline(decision: Decision, job: PendingJob, *, now: datetime) -> Decision:
    """The decision, or another of its places when only that one ends the job in time.

    The cheapest of these, then the fewest new nodes, then the earliest end. It looks at the
    candidates of the decision, so `admit`, which tells them all, has to have made it.
    """
    best = decision.best
    if not job.spec.deadline_s or best is None:
        return decision
    left_s = job.spec.deadline_s - _age_s(job, now)
    decided_s = finish_s(decision, best, job)
    if decided_s is not None and decided_s <= left_s:
        return decision
    choices = []
    for index, one in enumerate(decision.candidates):
        end_s = finish_s(decision, one, job)
        if end_s is not None and end_s <= left_s:
            cost = round(one.marginal_usd_per_h or 0.0, 9)
            choices.append((cost, len(one.added_nodes), end_s, index))
    if not choices:
        return decision
    chosen = min(choices)[-1]
    candidates = tuple(
        replace(one, verdict=Verdict.CHOSEN, reason=Reason())
        if index == chosen
        else _passed_over(one, decided_s)
        if index == decision.chosen
        else one
        for index, one in enumerate(decision.candidates)
    )
    return replace(
        decision,
        assignment=assignment_of(candidates[chosen], decision.job_id),
        candidates=candidates,
        chosen=chosen,
    )


def late(decision: Decision, job: PendingJob, *, now: datetime) -> Reason | None:
    """That the job cannot end in time where it was placed, or if it were placed now, and the
    earliest feasible end; None without a deadline, or when it can."""
    deadline_s = job.spec.deadline_s
    if not deadline_s:
        return None
    earliest_s = earliest_finish_s(decision, job, now=now)
    return too_late(earliest_s, deadline_s)


def too_late(end_s: float, deadline_s: float) -> Reason | None:
    """The reason for an end, both counted from submission, that is after the deadline."""
    if end_s <= deadline_s:
        return None
    return Reason(
        code="deadline",
        message=f"ends {format_duration(end_s)} after submission at the earliest, "
        f"{format_duration(end_s - deadline_s)} after its deadline of "
        f"{format_duration(deadline_s)}",
    )


def _passed_over(candidate: Candidate, end_s: float | None) -> Candidate:
    after = "" if end_s is None else f", {format_duration(end_s)} from now"
    reason = Reason(code="deadline", message=f"would end the job after its deadline{after}")
    return replace(candidate, verdict=Verdict.FEASIBLE, reason=reason)


def _age_s(job: PendingJob, now: datetime) -> float:
    return max(0.0, (now - job.job.created_at).total_seconds())
