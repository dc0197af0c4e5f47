"""What placement decided about one job: every candidate with its verdict and its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rmux.cluster import Node
from rmux.group import Assignment, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Reason
from rmux.place.candidates import Kind
from rmux.place.link import LinkLoad
from rmux.place.period import Period
from rmux.place.residency import NodeMemory


class Verdict(StrEnum):
    CHOSEN = "chosen"
    FEASIBLE = "feasible"
    """It would do, but another is preferred."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Planned period over solo time of one member, and what it accepts."""

    job_id: JobId
    name: str
    slowdown: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One bound of a place: what it is of, and its numbers by name (seconds, bytes, bit/s).

    Codes: cycle, rollout_load, train_load, order (what the period is bound by), cap, residency,
    link, and every code of `Candidate.reason`.
    """

    code: str
    message: str
    subject: str = ""
    """The job, node, device or link."""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One place, its numbers and what became of it; None and empty where it was refused before.

    Codes of `reason`: residency, slo, capacity, data_parallel, hardware, link, drained, saturated,
    down, members; of a feasible one that was not chosen: cost, nodes, overlap, slower.
    """

    kind: Kind
    group_id: GroupId | None
    """None for a new group."""
    verdict: Verdict
    reason: Reason
    placement: Placement | None = None
    added_nodes: tuple[NodeId, ...] = ()
    marginal_usd_per_h: float | None = None
    period: Period | None = None
    cap_s: float | None = None
    """Longest period that every member accepts."""
    cap_job: str = ""
    """Name of the member whose limit that is."""
    overlapping: bool = False
    """Rollout device sets would overlap in part."""
    slowdowns: tuple[Slowdown, ...] = ()
    memory: tuple[NodeMemory, ...] = ()
    link: LinkLoad | None = None
    bounds: tuple[Bound, ...] = ()
    """Every bound that does not hold, then what the period is bound by and the nearest cap."""
    new_nodes: tuple[Node, ...] = ()
    """Those of the added nodes that elastic pools would gain."""
    tightness: float = 0.0
    """How much of what it may take the tightest member's iteration takes."""
    turns: tuple[JobId, ...] = ()
    """The group's round, where it is not the order of joining."""
    miss: float = float("inf")
    """By what fraction of its limit a refused candidate misses; infinite where nothing is near."""

    @property
    def bound_by(self) -> str:
        """'rollout load of r0/0': what makes the period as long as it is, jobs by their names."""
        if self.period is None:
            return ""
        names = {str(one.job_id): one.name for one in self.slowdowns}
        subjects = (names.get(part, part) for part in self.period.subject.split(", "))
        return f"{self.period.binding} of {', '.join(subjects)}"

    @property
    def tightest(self) -> Slowdown | None:
        """The member with the least slack."""
        return max(self.slowdowns, key=lambda one: one.slowdown / one.limit, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    job_id: JobId
    assignment: Assignment | None
    candidates: tuple[Candidate, ...]
    chosen: int | None
    """Index into `candidates`."""
    reason: Reason
    """Why it is not admitted; code 'none' when it is."""
    never_fits: bool
    """Refused even on the empty cluster with no node drained."""
    revision: int
    """Of the state that it was made from."""
    rule: str = "interval"
    margin: float = 0.0
    margin_usd_per_h: float = 0.0
    """What the margin adds to the marginal price, USD/h."""

    @property
    def admitted(self) -> bool:
        return self.assignment is not None

    @property
    def best(self) -> Candidate | None:
        return None if self.chosen is None else self.candidates[self.chosen]


def why_refused(candidates: Sequence[Candidate]) -> Reason:
    """The refusal that comes nearest to its limit, and what stands against the other places."""
    if not candidates:
        return Reason(code="capacity", message="there are no pools")
    joins = [one for one in candidates if one.kind is not Kind.NEW]
    alone = [one for one in candidates if one.kind is Kind.NEW]
    nearest = min([*alone, *joins], key=lambda one: one.miss)
    message = f"{place_name(nearest)}: {nearest.reason.message}"
    if nearest not in alone and alone:
        message += f"; new group: {alone[0].reason.message}"
    elif joins:
        counts = Counter(one.reason.code for one in joins)
        told = ", ".join(f"{code} {count}" for code, count in sorted(counts.items()))
        message += f"; groups refused: {told}"
    return Reason(code=nearest.reason.code, message=message)


def place_name(candidate: Candidate) -> str:
    return f"group {candidate.group_id}" if candidate.group_id is not None else "new group"
