"""Whether and where a job is admitted: the cheapest place that keeps every promise.

The interval rule: with L the period of the group in its own order after the job joined, feasible
iff `L x (1 + margin) <= min_k SLO_k x S_k` over old and new members, every node's host memory
suffices and every link carries the syncs of all groups. L is at least the longest loop S_j and
every device load, so those bounds are inside it. The margin pays for interference and jitter; a
job that is alone meets none.

`rule="paper"` is Algorithm 1 of RollMux: saturated groups are pruned, the first of equal cost wins,
and the link is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rmux.cluster import Link
from rmux.errors import UserError
from rmux.estimate import JobProfile
from rmux.group import Assignment, ClusterState, CoExecGroup, Member, Placement, member_of
from rmux.ids import GroupId, JobId
from rmux.job import JobSpec, Reason
from rmux.place import candidates as places
from rmux.place.candidates import Kind, Proposal
from rmux.place.decision import Candidate, Decision, Slowdown, Verdict, why_refused
from rmux.place.inventory import Inventory
from rmux.place.link import LinkLoad, link_of, loads_bps, sync_bps
from rmux.place.period import (
    CLOSE,
    Period,
    largest_load_s,
    largest_term,
    loop_of,
    overlaps,
    period_of,
)
from rmux.place.residency import memory_of
from rmux.units import format_bytes, format_duration, format_rate, format_usd_per_h

RULES = ("interval", "paper")


def admit(
    state: ClusterState,
    *,
    spec: JobSpec,
    profile: JobProfile,
    job_id: JobId,
    rule: str = "interval",
    margin: float = 0.0,
    group: GroupId | None = None,
) -> Decision:
    """Decide on one job; with `group` only that group is looked at. Pure.

    UserError for an unknown rule or a negative margin, NotFoundError for an unknown group.
    """
    if rule not in RULES:
        raise UserError(f"no rule {rule!r}", hint=f"one of {', '.join(RULES)}")
    if not 0 <= margin < float("inf"):
        raise UserError(f"margin is {margin:g}; write a fraction such as 0.05")
    judge = _Judge(state, _Newcomer(spec, profile, job_id), rule=rule, margin=margin)
    looked_at = (state.group(group),) if group is not None else state.groups
    judged = [one for some in looked_at if some.members for one in judge.join(some)]
    if group is None:
        judged += judge.alone()
    chosen = _choose(judged, rule)
    never, reason = False, Reason()
    if chosen is not None:
        judged = [_compared(one, to=judged[chosen]) for one in judged]
    else:
        reason = why_refused(judged)
        empty = list(judge.on(places.empty_cluster(state)).alone()) if group is None else []
        if empty and all(one.verdict is Verdict.REFUSED for one in empty):
            never, reason = True, why_refused(empty)
    return Decision(
        job_id=job_id,
        assignment=None if chosen is None else _assignment(judged[chosen], job_id),
        candidates=tuple(judged),
        chosen=chosen,
        reason=reason,
        never_fits=never,
        revision=state.revision,
        rule=rule,
        margin=margin,
    )


@dataclass(frozen=True, slots=True)
class _Newcomer:
    spec: JobSpec
    profile: JobProfile
    job_id: JobId

    def at(self, placement: Placement) -> Member:
        return member_of(self.spec, self.profile, job_id=self.job_id, placement=placement)


class _Judge:
    """Judges every proposal for one newcomer in one state."""

    def __init__(
        self, state: ClusterState, newcomer: _Newcomer, *, rule: str, margin: float
    ) -> None:
        self.newcomer, self.rule, self.margin = newcomer, rule, margin
        self.known = Inventory.of(state)
        self.link_loads: Mapping[Link, float] = loads_bps(self.known) if rule == "interval" else {}

    def on(self, state: ClusterState) -> _Judge:
        return _Judge(state, self.newcomer, rule=self.rule, margin=self.margin)

    def join(self, group: CoExecGroup) -> Iterator[Candidate]:
        """One candidate per placement in the group, or one refusal of the whole group."""
        refused = self._saturated(group) if self.rule == "paper" else self._beyond(group)
        if refused is not None:
            yield refused
            return
        for proposal in places.proposals_for(
            self.known, group, spec=self.newcomer.spec, profile=self.newcomer.profile
        ):
            yield self._judged(proposal)

    def alone(self) -> Iterator[Candidate]:
        for proposal in places.isolated(
            self.known, spec=self.newcomer.spec, profile=self.newcomer.profile
        ):
            yield self._judged(proposal)

    def _judged(self, proposal: Proposal) -> Candidate:
        group = proposal.group
        blank = Candidate(
            kind=proposal.kind,
            group_id=None if group is None else group.id,
            verdict=Verdict.REFUSED,
            reason=proposal.refusal or Reason(),
        )
        if proposal.placement is None:
            return blank
        old = () if group is None else group.members
        members = (*old, self.newcomer.at(proposal.placement))
        loops = [loop_of(member) for member in members]
        candidate = replace(
            self._promised(blank, members, period_of(loops, order=[m.job_id for m in members])),
            placement=proposal.placement,
            added_nodes=proposal.added_nodes,
            marginal_usd_per_h=self.known.usd_per_h(proposal.added_nodes),
            overlapping=overlaps(loops),
            memory=memory_of(
                members,
                self.known,
                nodes=(*proposal.placement.rollout_nodes, *proposal.placement.train_nodes),
            ),
            link=self._link(members, group),
        )
        refusal, miss = self._first_broken(candidate)
        if refusal is None:
            return replace(candidate, verdict=Verdict.FEASIBLE)
        return replace(candidate, reason=refusal, miss=miss)

    def _promised(
        self, candidate: Candidate, members: Sequence[Member], period: Period
    ) -> Candidate:
        limits = [(member.slo * member.profile.solo_s, member.name) for member in members]
        cap_s, cap_job = min(limits, key=lambda limit: limit[0])
        return replace(
            candidate,
            period=period,
            cap_s=cap_s,
            cap_job=cap_job,
            slowdowns=tuple(
                Slowdown(
                    job_id=member.job_id,
                    name=member.name,
                    slowdown=period.period_s / member.profile.solo_s,
                    limit=member.slo,
                )
                for member in members
            ),
        )

    def _link(self, members: Sequence[Member], group: CoExecGroup | None) -> LinkLoad | None:
        """The link with all groups on it and this one as it would be."""
        link = link_of(members, self.known)
        if link is None or self.rule != "interval":
            return None
        now = self._sync_bps(group.members) if group is not None else 0.0
        return LinkLoad(link=link, load_bps=self.link_loads[link] - now + self._sync_bps(members))

    def _sync_bps(self, members: Sequence[Member]) -> float:
        order = [member.job_id for member in members]
        return sync_bps(members, period_of([loop_of(m) for m in members], order=order).period_s)

    def _first_broken(self, candidate: Candidate) -> tuple[Reason | None, float]:
        """The first bound that does not hold, and by what fraction it is missed."""
        short = min(candidate.memory, key=lambda node: node.free_bytes)
        if not short.fits:
            message = (
                f"short by {format_bytes(-short.free_bytes)} of host memory on {short.node} "
                f"(limit {format_bytes(short.limit_bytes)})"
            )
            miss = -short.free_bytes / max(1, short.limit_bytes)
            return Reason(code="residency", message=message), miss
        reason, miss = self._slo_broken(candidate)
        if reason is not None:
            return reason, miss
        link = candidate.link
        if link is not None and not link.fits:
            message = (
                f"syncs would load the link {link.link.source} - {link.link.target} with "
                f"{format_rate(link.load_bps)} of {format_rate(link.link.rate_bps)}"
            )
            return Reason(code="link", message=message), link.load_bps / link.link.rate_bps - 1
        return None, 0.0

    def _slo_broken(self, candidate: Candidate) -> tuple[Reason | None, float]:
        if candidate.period is None or candidate.cap_s is None:
            return None, 0.0
        margin = self.margin if len(candidate.slowdowns) > 1 else 0.0
        planned_s = candidate.period.period_s * (1 + margin)
        if planned_s <= candidate.cap_s * CLOSE:
            return None, 0.0
        tight = next(one for one in candidate.slowdowns if one.name == candidate.cap_job)
        with_margin = f" and a margin of {margin:g}" if margin else ""
        message = (
            f"period {format_duration(candidate.period.period_s)}{with_margin} slows "
            f"{tight.name} {planned_s / candidate.cap_s * tight.limit:.2f}x where "
            f"{tight.limit:.2f}x is allowed; bound by {candidate.bound_by}"
        )
        return Reason(code="slo", message=message), planned_s / candidate.cap_s - 1

    def _beyond(self, group: CoExecGroup) -> Candidate | None:
        """A refusal for every placement at once: the largest term without the new rollout."""
        train = group.members[0].placement.train
        members = (*group.members, self.newcomer.at(Placement(rollout=(), train=train)))
        if len(train) != self.newcomer.spec.train.devices:
            return None
        bound = largest_term([loop_of(member) for member in members])
        blank = Candidate(
            kind=Kind.PACK, group_id=group.id, verdict=Verdict.REFUSED, reason=Reason()
        )
        candidate = self._promised(blank, members, bound)
        reason, miss = self._slo_broken(candidate)
        return None if reason is None else replace(candidate, reason=reason, miss=miss)

    def _saturated(self, group: CoExecGroup) -> Candidate | None:
        loops = [loop_of(member) for member in group.members]
        load_s, cycle_s = largest_load_s(loops), max(loop.solo_s for loop in loops)
        if load_s < cycle_s:
            return None
        message = (
            f"load {format_duration(load_s)} is not below the cycle {format_duration(cycle_s)}"
        )
        return Candidate(
            kind=Kind.PACK,
            group_id=group.id,
            verdict=Verdict.REFUSED,
            reason=Reason(code="saturated", message=message),
            period=largest_term(loops),
        )


def _assignment(candidate: Candidate, job_id: JobId) -> Assignment | None:
    if candidate.placement is None:
        return None
    return Assignment(
        job_id=job_id,
        group_id=candidate.group_id,
        placement=candidate.placement,
        added_nodes=candidate.added_nodes,
    )


def _choose(candidates: Sequence[Candidate], rule: str) -> int | None:
    """The cheapest; then fewest new nodes, sets that do not overlap, most slack, first found."""
    feasible = [i for i, one in enumerate(candidates) if one.verdict is Verdict.FEASIBLE]
    if rule == "paper":
        return min(feasible, key=lambda i: _cost(candidates[i]), default=None)
    return min(feasible, key=lambda i: _preference(candidates[i]), default=None)


def _cost(candidate: Candidate) -> float:
    return round(candidate.marginal_usd_per_h or 0.0, 9)


def _preference(candidate: Candidate) -> tuple[float, int, bool, float]:
    return (
        _cost(candidate),
        len(candidate.added_nodes),
        candidate.overlapping,
        _tightness(candidate),
    )


def _tightness(candidate: Candidate) -> float:
    tight = candidate.tightest
    return 0.0 if tight is None else round(tight.slowdown / tight.limit, 9)


def _compared(candidate: Candidate, *, to: Candidate) -> Candidate:
    """A feasible candidate beside the chosen one: what speaks for the other."""
    if candidate is to:
        return replace(candidate, verdict=Verdict.CHOSEN)
    if candidate.verdict is not Verdict.FEASIBLE:
        return candidate
    if _cost(candidate) > _cost(to):
        extra = format_usd_per_h(_cost(candidate) - _cost(to))
        reason = Reason(code="cost", message=f"costs {extra} more")
    elif _preference(candidate)[1] > _preference(to)[1]:
        reason = Reason(code="nodes", message="takes more nodes")
    elif candidate.overlapping and not to.overlapping:
        reason = Reason(code="overlap", message="device sets would overlap in part")
    else:
        reason = Reason(code="slower", message="no cheaper, and leaves less slack")
    return replace(candidate, reason=reason)
