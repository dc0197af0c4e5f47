"""Every place that could be judged, in the order that decides between equal ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rmux.job import Reason
from rmux.place import candidates as places
from rmux.place.candidates import Kind, Proposal
from rmux.place.decision import Candidate
from rmux.place.index_explain import explained, full_group, refused
from rmux.place.index_judge import Judge
from rmux.place.index_row import Row


def in_group(judge: Judge, row: Row, *, max_members: int) -> Iterator[Candidate]:
    """One candidate per placement in the group, or one refusal of the whole group."""
    if not row.members:
        return
    job = judge.job
    reason = places.refusal_of(row, job) or places.members_refusal(row, max_members)
    if reason is not None:
        yield refused(Kind.PACK, row, reason)
        return
    beyond = full_group(row) if judge.paper else _beyond(judge, row)
    if beyond is not None:
        yield beyond
        return
    found = False
    for one in (*judge.packings(row), *judge.scalings(row)):
        found = True
        yield explained(judge, one)
    if not found:
        yield refused(Kind.SCALE, row, places.shortage((row.stock,), job.count))


def alone(judge: Judge) -> Iterator[Candidate]:
    """One candidate per new group that there is room for, or why there is none."""
    found = False
    for one in judge.isolated():
        found = True
        yield explained(judge, one)
    if not found:
        yield refused(Kind.NEW, None, places.none_isolated(judge.known, judge.job))


def nothing_to_plan(judge: Judge) -> Candidate | None:
    """The refusal of a job whose phases take no time at all."""
    if judge.job.needs.solo_s > 0:
        return None
    message = "its phases take 0 s, so there is no slowdown to promise; profile it again"
    return refused(Kind.NEW, None, Reason(code="phases", message=message))


def _beyond(judge: Judge, row: Row) -> Candidate | None:
    """A refusal for every placement at once: even without a rollout the period is too long."""
    one = Proposal(
        Kind.PACK, row, rollout=(), nodes=(), train=row.train, needs=judge.job.needs_on(row.train)
    )
    if not one.needs.plain or not row.plain or row.overlapping:
        return None
    timing = judge.largest_sum(row, one)
    if judge.in_time(one, timing):
        return None
    candidate = explained(judge, one, timing=timing)
    return replace(candidate, placement=None, memory=(), marginal_usd_per_h=None, link=None)
