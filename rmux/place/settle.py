"""Cluster-wide placement in one pure pass: what the pending jobs get now."""

from __future__ import annotations

from dataclasses import replace

from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, CoExecGroup, member_of
from rmux.ids import GroupId
from rmux.job import JobSpec
from rmux.place.admit import admit
from rmux.place.decision import Decision


def settle(
    state: ClusterState, *, rule: str | None = None, margin: float | None = None
) -> tuple[Decision, ...]:
    """One decision per pending job, oldest first, each from the state that the others lead to.

    A later job may join a group that an earlier one founds; that group is called
    `founded_by(job)` until the store has named it.
    """
    decisions = []
    for waiting in sorted(state.pending, key=lambda one: (one.job.created_at, one.job.id)):
        decision = admit(
            state,
            spec=waiting.spec,
            profile=waiting.profile,
            job_id=waiting.job.id,
            rule=rule,
            margin=margin,
        )
        decisions.append(decision)
        if decision.assignment is not None:
            state = applied(state, decision.assignment, waiting.spec, waiting.profile)
    return tuple(decisions)


def founded_by(job_id: str) -> GroupId:
    """Name of a group that a decision makes, before it has an id."""
    return GroupId(f"new-{job_id}")


def applied(
    state: ClusterState, assignment: Assignment, spec: JobSpec, profile: JobProfile
) -> ClusterState:
    """The state after an assignment, at the same revision."""
    member = member_of(spec, profile, job_id=assignment.job_id, placement=assignment.placement)
    pending = tuple(one for one in state.pending if one.job.id != assignment.job_id)
    if assignment.group_id is None:
        founded = CoExecGroup(
            id=founded_by(assignment.job_id), members=(member,), nodes=assignment.added_nodes
        )
        return replace(state, groups=(*state.groups, founded), pending=pending)
    groups = tuple(
        replace(
            group,
            members=(*group.members, member),
            nodes=tuple(n for n in group.nodes if n not in assignment.removed_nodes)
            + assignment.added_nodes,
        )
        if group.id == assignment.group_id
        else group
        for group in state.groups
    )
    return replace(state, groups=groups, pending=pending)
