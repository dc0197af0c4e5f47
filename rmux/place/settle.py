"""Cluster-wide placement in one pure pass: the waiting jobs, then a job whose growth breaks a
promise, then moves that save money.

Waiting jobs are tried in the order of `queue`, each from the state that the others lead to; a
tenant's quota, a reserved start and a deadline bear on what each gets. What the cluster's policy
does not ask for does not happen: by default the pass serves the oldest first and moves nobody.
Promises come before money: a pass that places a job anew proposes no moves.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, PendingJob
from rmux.ids import JobId
from rmux.job import JobSpec, Reason
from rmux.place import queue
from rmux.place.admit import admit
from rmux.place.decision import Decision
from rmux.place.drift import Broken, Observed, admitted_again, broken
from rmux.place.index import Index, founded_by
from rmux.place.rebalance import Rebalance, propose, spec_of

__all__ = ["Readmission", "Settlement", "applied", "founded_by", "settle", "settle_pending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmission:
    """A job that grew beyond its plan, and where it goes with the plan that it has now."""

    broken: Broken
    decision: Decision
    """Without an assignment it stays as it is until there is a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What one pass decided; what comes after the decisions is made upon them."""

    decisions: tuple[Decision, ...]
    readmission: Readmission | None = None
    rebalance: Rebalance | None = None
    """None where the policy moves nobody."""


def settle(
    state: ClusterState,
    *,
    now: datetime | None = None,
    rule: str | None = None,
    margin: float | None = None,
    staying: Set[JobId] = frozenset(),
    observed: Observed | None = None,
) -> Settlement:
    """One decision per waiting job, and what the policy asks for beyond. Pure but for `now`, which
    is the present when it is not given.

    A later job may join a group that an earlier one founds; that group is called
    `founded_by(job)` until the store has named it. Jobs in `staying` do not leave their group.
    `observed` is what was seen of phases, where they are tracked.
    """
    decisions, state = _decided(state, now=now or datetime.now(UTC), rule=rule, margin=margin)
    again = _readmitted(state, observed, staying) if observed else None
    if again is not None and again.decision.admitted:
        return Settlement(decisions=decisions, readmission=again)
    if not state.cluster.policy.rebalance:
        return Settlement(decisions=decisions, readmission=again)
    fresh = {decision.job_id for decision in decisions if decision.admitted}
    moves = propose(state, staying=staying | fresh)
    return Settlement(decisions=decisions, readmission=again, rebalance=moves)


def settle_pending(
    state: ClusterState,
    *,
    now: datetime | None = None,
    rule: str | None = None,
    margin: float | None = None,
) -> tuple[Decision, ...]:
    """Only the decisions of `settle`."""
    return _decided(state, now=now or datetime.now(UTC), rule=rule, margin=margin)[0]


def applied(
    state: ClusterState, assignment: Assignment, spec: JobSpec, profile: JobProfile
) -> ClusterState:
    """The state after an assignment, at the same revision."""
    index = Index.of(state)
    index.apply(assignment, spec=spec, profile=profile)
    pending = tuple(one for one in state.pending if one.job.id != assignment.job_id)
    return replace(index.state(), pending=pending)


def _readmitted(state: ClusterState, observed: Observed, staying: Set[JobId]) -> Readmission | None:
    found = broken(state, observed)
    if found is None:
        return None
    member = state.group(found.group_id).member(found.job_id)
    stays = not member.movable or member.job_id in staying
    group = found.group_id if stays else None
    decision = admitted_again(state, found, spec=spec_of(member), group=group)
    return Readmission(broken=found, decision=decision)


def _decided(
    state: ClusterState, *, now: datetime, rule: str | None, margin: float | None
) -> tuple[tuple[Decision, ...], ClusterState]:
    """The decisions, and the state after them without anybody waiting."""
    decisions: list[Decision] = []
    index, kept = Index.of(state), None
    for waiting in queue.order(state, now=now):
        if kept is None:
            decision = _decide(index, state, waiting, now=now, rule=rule, margin=margin)
        else:
            seen = queue.held_back(state, kept)
            decision = _decide(Index.of(seen), seen, waiting, now=now, rule=rule, margin=margin)
        if decision.assignment is not None:
            refusal = queue.quota_refusal(state, waiting, decision.assignment)
            if refusal is not None:
                decision = _refused(decision, refusal)
        elif kept is not None and queue.fits(state, waiting):
            decision = _refused(decision, queue.reserved(kept))
        elif kept is None:
            kept = queue.reservation(state, waiting, now=now)
        decisions.append(decision)
        if decision.assignment is not None:
            index.apply(decision.assignment, spec=waiting.spec, profile=waiting.profile)
            state = index.state()
    return tuple(decisions), replace(state, pending=())


def _decide(
    index: Index,
    state: ClusterState,
    waiting: PendingJob,
    *,
    now: datetime,
    rule: str | None,
    margin: float | None,
) -> Decision:
    """By the index, where no deadline asks for a look at every place."""
    spec, profile, job_id = waiting.spec, waiting.profile, waiting.job.id
    if not spec.deadline_s:
        return index.decide(spec=spec, profile=profile, job_id=job_id, rule=rule, margin=margin)
    decision = admit(state, spec=spec, profile=profile, job_id=job_id, rule=rule, margin=margin)
    return queue.preferring_deadline(decision, waiting, now=now)


def _refused(decision: Decision, reason: Reason) -> Decision:
    """The same look at the places, and none of them given."""
    return replace(decision, assignment=None, chosen=None, reason=reason, never_fits=False)
