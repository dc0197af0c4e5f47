"""Whether and where a job is admitted: the cheapest place that keeps every promise.

The interval rule: with L the seconds per iteration after the job joined, feasible iff
`L x (1 + margin) <= SLO_k x S_k` over old and new members k, every node's host memory suffices and
every link carries the syncs of all groups. L is at least the longest loop S_j and every device
load, so those bounds are inside it. The margin pays for interference and jitter; a job that is
alone meets none.

`rule="paper"` is Algorithm 1 of RollMux: saturated groups are pruned, the first of equal cost wins,
and the link is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmux.estimate import JobProfile
from rmux.group import ClusterState
from rmux.ids import GroupId, JobId
from rmux.job import JobSpec, Reason
from rmux.place.decision import Candidate, Decision, Verdict
from rmux.place.index import RULES, Index
from rmux.place.index_judge import Key, whole
from rmux.place.index_listing import alone, in_group, nothing_to_plan
from rmux.units import format_usd_per_h

__all__ = ["RULES", "admit"]


def admit(
    state: ClusterState,
    *,
    spec: JobSpec,
    profile: JobProfile,
    job_id: JobId,
    rule: str | None = None,
    margin: float | None = None,
    group: GroupId | None = None,
) -> Decision:
    """Decide on one job and tell every candidate; with `group` only that group is looked at. Pure.

    Without `rule` or `margin` those of the cluster's policy hold. UserError for an unknown rule or
    a negative margin, NotFoundError for an unknown group. `Index.decide` decides the same faster.
    """
    if group is not None:
        state.group(group)
    index = Index.of(state)
    judge = index.judge(spec=spec, profile=profile, job_id=job_id, rule=rule, margin=margin)
    if nothing := nothing_to_plan(judge):
        return index.decision(judge, [nothing], None)
    limit = index.policy.max_members
    judged = [
        one
        for row in index.rows()
        if group in (None, row.id)
        for one in in_group(judge, row, max_members=limit)
    ]
    if group is None:
        judged += alone(judge)
    chosen = _choose(judged, paper=judge.paper)
    if chosen is not None:
        judged = [_compared(one, to=judged[chosen]) for one in judged]
    return index.decision(judge, judged, chosen, everywhere=group is None)


def _choose(candidates: Sequence[Candidate], *, paper: bool) -> int | None:
    """The cheapest; then fewest new nodes, sets that do not overlap, most slack, first found."""
    feasible = [i for i, one in enumerate(candidates) if one.verdict is Verdict.FEASIBLE]
    if paper:
        return min(feasible, key=lambda i: _preference(candidates[i])[0], default=None)
    return min(feasible, key=lambda i: _preference(candidates[i]), default=None)


def _preference(candidate: Candidate) -> Key:
    return (
        whole(candidate.marginal_usd_per_h or 0.0),
        len(candidate.added_nodes),
        candidate.overlapping,
        whole(candidate.tightness),
    )


def _compared(candidate: Candidate, *, to: Candidate) -> Candidate:
    """A feasible candidate beside the chosen one: what speaks for the other."""
    if candidate is to:
        return replace(candidate, verdict=Verdict.CHOSEN)
    if candidate.verdict is not Verdict.FEASIBLE:
        return candidate
    ours, theirs = _preference(candidate), _preference(to)
    if ours[0] > theirs[0]:
        more_usd = (candidate.marginal_usd_per_h or 0.0) - (to.marginal_usd_per_h or 0.0)
        reason = Reason(code="cost", message=f"costs {format_usd_per_h(more_usd)} more")
    elif ours[1] > theirs[1]:
        reason = Reason(code="nodes", message="takes more nodes")
    elif candidate.overlapping and not to.overlapping:
        reason = Reason(code="overlap", message="device sets would overlap in part")
    else:
        reason = Reason(code="slower", message="no cheaper, and leaves less slack")
    return replace(candidate, reason=reason)
