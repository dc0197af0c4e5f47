"""A judged place in full: its period, slowdowns and memory, and each bound with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rmux.group import Assignment, Member
from rmux.ids import JobId
from rmux.job import Reason
from rmux.place.candidates import Kind, Proposal
from rmux.place.decision import Bound, Candidate, Slowdown, Verdict
from rmux.place.index_judge import Judge, Timing, saturated
from rmux.place.index_needs import Needs
from rmux.place.index_row import Row
from rmux.place.link import LinkLoad
from rmux.place.period import CLOSE, Period, Term
from rmux.place.residency import JobMemory, NodeMemory, job_memory
from rmux.units import format_bytes, format_duration, format_rate

_SHOWN_MEMBERS = 5


def refused(kind: Kind, row: Row | None, reason: Reason) -> Candidate:
    """A place that could not even be judged."""
    return Candidate(
        kind=kind,
        group_id=None if row is None else row.id,
        verdict=Verdict.REFUSED,
        reason=reason,
        bounds=(Bound(code=reason.code, message=reason.message),),
    )


def full_group(row: Row) -> Candidate | None:
    """The refusal of Algorithm 1, line 4, when it holds."""
    if not saturated(row):
        return None
    load, cycle = format_duration(row.load_s), format_duration(row.cycle_s)
    one = refused(
        Kind.PACK,
        row,
        Reason(code="saturated", message=f"load {load} is not below the cycle {cycle}"),
    )
    numbers = {"load_s": row.load_s, "cycle_s": row.cycle_s}
    return replace(one, bounds=(replace(one.bounds[0], numbers=numbers),))


def explained(judge: Judge, one: Proposal, *, timing: Timing | None = None) -> Candidate:
    """Everything about one place, in the order in which its bounds are looked at."""
    timing = judge.timing(one) if timing is None else timing
    row, job = one.row, judge.job
    period = timing.period or _largest_sum(one, timing, job.job_id)
    entries = _entries(one, judge)
    slowdowns = tuple([_slowdown(entry, period) for entry in entries])
    cap_job, _, needs, slo = min(entries, key=lambda entry: entry[2].cap_s)
    memory = judge.memory(one)
    link = None if judge.links is None else judge.links.load(one)
    factor = judge.shared(one)
    bound_by = _bound_by(period, {str(entry[1]): entry[0] for entry in entries})
    broken = [
        *_memory_broken(memory, row.members if row else (), least=1 if judge.paper else 0),
        *_slo_broken(entries, period, factor, bound_by),
        *_link_broken(link),
    ]
    cap = Bound(
        code="cap",
        message=f"{cap_job} accepts iterations of up to {format_duration(needs.cap_s)}",
        subject=cap_job,
        numbers={"cap_s": needs.cap_s, "slo": slo, "period_s": period.period_s},
    )
    return Candidate(
        kind=one.kind,
        group_id=None if row is None else row.id,
        verdict=Verdict.REFUSED if broken else Verdict.FEASIBLE,
        reason=Reason(code=broken[0][0].code, message=broken[0][0].message) if broken else Reason(),
        placement=one.placement,
        added_nodes=tuple([node.id for node in one.added]),
        new_nodes=tuple([node for node in one.added if not judge.known.is_listed(node)]),
        marginal_usd_per_h=judge.usd_per_h(one),
        period=period,
        cap_s=needs.cap_s,
        cap_job=cap_job,
        overlapping=not one.apart,
        slowdowns=slowdowns,
        memory=memory,
        link=link,
        bounds=(*[bound for bound, _ in broken], bound_by, cap),
        tightness=timing.tight,
        turns=_turns(one, period, job.job_id),
        miss=broken[0][1] if broken else float("inf"),
    )


def assignment_of(candidate: Candidate, job_id: JobId) -> Assignment | None:
    if candidate.placement is None:
        return None
    return Assignment(
        job_id=job_id,
        group_id=candidate.group_id,
        placement=candidate.placement,
        added_nodes=candidate.added_nodes,
        turns=candidate.turns,
        new_nodes=candidate.new_nodes,
    )


_Entry = tuple[str, JobId, Needs, float]
"""(name, job, numbers, SLO)"""


def _entries(one: Proposal, judge: Judge) -> list[_Entry]:
    job, row = judge.job, one.row
    entries = [(job.spec.name, job.job_id, one.needs, job.spec.slo)]
    if row is None:
        return entries
    old = zip(row.members, row.needs, strict=True)
    return [(m.name, m.job_id, needs, m.slo) for m, needs in old] + entries


def _slowdown(entry: _Entry, period: Period) -> Slowdown:
    name, job_id, needs, slo = entry
    solo_s, iteration_s = needs.cap_s / slo, period.iteration_s(job_id)
    return Slowdown(
        job_id=job_id,
        name=name,
        slowdown=iteration_s / solo_s if solo_s > 0 else 1.0,
        limit=slo,
    )


def _largest_sum(one: Proposal, timing: Timing, job_id: JobId) -> Period:
    """The period as `largest_term` tells it, from sums that are known."""
    row, needs, period_s = one.row, one.needs, timing.period_s
    if row is None:
        return _period(period_s, Term.CYCLE, str(job_id), (job_id,))
    order = (*[member.job_id for member in row.members], job_id)
    cycles = [*[each.solo_s for each in row.needs], needs.solo_s]
    longest_s = max(cycles)
    if longest_s >= period_s:
        return _period(period_s, Term.CYCLE, str(order[cycles.index(longest_s)]), order)
    busiest = [seat for seat in row.seats if seat is not one.seat and seat.load_s >= period_s]
    here_s = needs.rollout_s + (0.0 if one.seat is None else one.seat.load_s)
    firsts = [min(seat.devices) for seat in busiest]
    if here_s >= period_s and one.rollout:
        firsts.append(min(one.rollout))
    if firsts:
        return _period(period_s, Term.ROLLOUT_LOAD, str(min(firsts)), order)
    return _period(period_s, Term.TRAIN_LOAD, str(min(row.train)), order)


def _period(period_s: float, term: Term, subject: str, order: tuple[JobId, ...]) -> Period:
    return Period(period_s=period_s, binding=term, subject=subject, binding_s=period_s, order=order)


def _turns(one: Proposal, period: Period, job_id: JobId) -> tuple[JobId, ...]:
    """The round where it is not what appending the job to the group's would give."""
    row = one.row
    if row is None:
        return () if len(period.order) == 1 else period.order
    if not row.turns:
        appended = (*[member.job_id for member in row.members], job_id)
    else:
        appended = (*row.group.round, job_id)
    return () if period.order == appended else period.order


def _bound_by(period: Period, names: dict[str, str]) -> Bound:
    subject = ", ".join(names.get(part, part) for part in period.subject.split(", "))
    return Bound(
        code=str(period.binding).replace(" ", "_"),
        message=f"{period.binding} of {subject} is {format_duration(period.binding_s)}",
        subject=subject,
        numbers={"binding_s": period.binding_s, "period_s": period.period_s},
    )


def _memory_broken(
    memory: Sequence[NodeMemory], members: Sequence[Member], *, least: int
) -> Iterator[tuple[Bound, float]]:
    for node in sorted(memory, key=lambda node: node.free_bytes):
        if node.free_bytes >= least:
            return
        limit = format_bytes(node.limit_bytes)
        short = f"short by {format_bytes(-node.free_bytes)}" if node.free_bytes else "nothing left"
        held = [job_memory(member, node.node) for member in members]
        held_bytes = sum(job.resident_bytes for job in held)
        asked_bytes = node.resident_bytes - held_bytes
        left_bytes = node.limit_bytes - held_bytes - node.switch_bytes
        yield (
            Bound(
                code="residency",
                message=f"{short} of host memory on {node.node} (limit {limit}): "
                f"{_held(held)}{format_bytes(node.switch_bytes)} for the largest switch, "
                f"{format_bytes(asked_bytes)} asked, {format_bytes(max(0, left_bytes))} left",
                subject=node.node,
                numbers={
                    "need_bytes": node.resident_bytes + node.switch_bytes,
                    "limit_bytes": node.limit_bytes,
                    "held_bytes": held_bytes,
                    "switch_bytes": node.switch_bytes,
                    "asked_bytes": asked_bytes,
                    "left_bytes": left_bytes,
                },
            ),
            -node.free_bytes / max(1, node.limit_bytes),
        )


def _held(jobs: Sequence[JobMemory]) -> str:
    """'math 3.0 GiB + chat 1.0 GiB parked, ', the largest first."""
    found = sorted((job for job in jobs if job.resident_bytes), key=lambda job: -job.resident_bytes)
    told = [f"{job.name} {format_bytes(job.resident_bytes)}" for job in found[:_SHOWN_MEMBERS]]
    if rest := found[_SHOWN_MEMBERS:]:
        rest_bytes = sum(job.resident_bytes for job in rest)
        told.append(f"{len(rest)} more {format_bytes(rest_bytes)}")
    return f"{' + '.join(told)} parked, " if told else ""


def _slo_broken(
    entries: Sequence[_Entry], period: Period, factor: float, bound_by: Bound
) -> Iterator[tuple[Bound, float]]:
    over = []
    for name, job_id, needs, slo in entries:
        planned_s = period.iteration_s(job_id) * factor
        if planned_s > needs.cap_s * CLOSE:
            over.append((planned_s / needs.cap_s if needs.cap_s > 0 else 1e9, name, needs, slo))
    with_margin = f" and a margin of {factor - 1:g}" if factor > 1 else ""
    for ratio, name, needs, slo in sorted(over, key=lambda entry: -entry[0]):
        yield (
            Bound(
                code="slo",
                message=f"period {format_duration(period.period_s)}{with_margin} slows {name} "
                f"{ratio * slo:.2f}x where {slo:.2f}x is allowed; bound by "
                f"{period.binding!s} of {bound_by.subject}",
                subject=name,
                numbers={
                    "planned_s": ratio * needs.cap_s,
                    "cap_s": needs.cap_s,
                    "slowdown": ratio * slo,
                    "limit": slo,
                },
            ),
            ratio - 1,
        )


def _link_broken(link: LinkLoad | None) -> Iterator[tuple[Bound, float]]:
    if link is None or link.fits:
        return
    name = f"{link.link.source} - {link.link.target}"
    numbers = {"load_bps": link.load_bps, "rate_bps": link.link.rate_bps, "sync_s": link.sync_s}
    over = link.load_bps / link.link.rate_bps - 1
    if over > 0:
        message = (
            f"syncs would load the link {name} with {format_rate(link.load_bps)} of "
            f"{format_rate(link.link.rate_bps)}"
        )
        yield Bound(code="link", message=message, subject=name, numbers=numbers), over
    if link.breaks:
        message = f"on the link {name} {link.breaks}"
        yield Bound(code="link", message=message, subject=name, numbers=numbers), max(over, 0.0)
