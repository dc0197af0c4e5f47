"""What would let a waiting job in: one step with its numbers for each kind of refusal.

A step that names a value (an SLO, a rule, a limit) has been decided on: with it the job is
admitted in this state, and the smallest such SLO in hundredths is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from rmux.group import ClusterState, PendingJob
from rmux.place import charge, queue
from rmux.place.decision import Decision, Verdict
from rmux.place.unblock_place import ANSWERS, Step
from rmux.units import format_duration, format_usd_per_h

__all__ = ["Step", "steps"]


def steps(
    state: ClusterState, job: PendingJob, decision: Decision, *, now: datetime
) -> tuple[Step, ...]:
    """One step per reason code, the refusal that is nearest to its limit first; after them what
    the tenant's quota, a reserved start and the deadline ask for. `decision` is of `admit`."""
    refused = sorted(
        (one for one in decision.candidates if one.verdict is Verdict.REFUSED),
        key=lambda one: one.miss,
    )
    found: dict[str, Step] = {}
    for candidate in refused if not decision.admitted else ():
        answer = ANSWERS.get(candidate.reason.code)
        if answer is not None and candidate.reason.code not in found:
            step = answer(state, job, decision, candidate)
            if step is not None:
                found[step.code] = step
    return (*found.values(), *_of_queue(state, job, decision, now))


def _of_queue(
    state: ClusterState, job: PendingJob, decision: Decision, now: datetime
) -> Iterator[Step]:
    yield from _quota(state, job, decision)
    yield from _kept(state, job, decision, now)
    late = queue.late(decision, job, now=now)
    if late is not None:
        end_s = queue.earliest_finish_s(decision, job, now=now)
        yield Step(
            code="deadline",
            message=f"{late.message}: it could meet one of {format_duration(end_s)}, or this one "
            "with fewer iterations",
            numbers={"finish_s": end_s, "deadline_s": job.spec.deadline_s},
        )


def _quota(state: ClusterState, job: PendingJob, decision: Decision) -> Iterator[Step]:
    """For each tenant that the placement would raise above its quota."""
    if decision.assignment is None:
        return
    charged = charge.by_tenant(state)
    for tenant, added in queue.added_usd_per_h(state, job, decision.assignment).items():
        if queue.over(state.cluster, tenant, added, charged) is None:
            continue
        quota = next(t.quota_usd_per_h for t in state.cluster.tenants if t.name == tenant)
        before = charged.get(tenant, 0.0)
        enough = math.ceil((before + added) * 100) / 100
        yield Step(
            code="quota",
            message=f"quota of tenant {tenant} is {format_usd_per_h(quota)}, charged "
            f"{format_usd_per_h(before)}: quota_usd_per_h = {enough:.2f} would do "
            f"([tenants.{tenant}] of the cluster file), or that jobs of {tenant} end",
            numbers={"quota_usd_per_h": quota, "charged_usd_per_h": before, "added": added},
        )


def _kept(
    state: ClusterState, job: PendingJob, decision: Decision, now: datetime
) -> Iterator[Step]:
    """When the place that would do is kept for a job ahead that has waited longer."""
    if not decision.admitted:
        return
    for ahead in queue.order(state, now=now):
        if ahead.job.id == job.job.id:
            return
        kept = queue.reservation(state, ahead, now=now)
        if kept is None or queue.fits(state, ahead):
            continue
        if queue.fits(queue.held_back(state, kept), job):
            return
        ageing_s = state.cluster.policy.ageing_s
        steps_waited = queue.effective_priority(job, ageing_s=ageing_s, now=now) - job.spec.priority
        enough = queue.effective_priority(ahead, ageing_s=ageing_s, now=now) + 1 - steps_waited
        waits = f"groups {', '.join(kept.groups)} have ended" if kept.groups else "nodes are free"
        yield Step(
            code="reserved",
            message=f"{kept.name} ({kept.job_id}) starts first, when {waits}; --priority {enough} "
            f"would go ahead of it (it is {job.spec.priority} now)",
            numbers={"priority": float(enough)},
        )
        return
