"""How long one round of a group takes: one number that all its members share.

In a strict cyclic order every member runs once per round. With rollout r, train t (both with the
switch) and s off the devices, a job alone needs r+t+s, and a device needs the sum of what it runs.
The largest of these terms is the exact period, whatever the order, where rollout device sets are
pairwise equal or disjoint, the train devices are shared, and there is room for s: the terms still
bind when s is charged to the train devices, or to the rollout devices. Elsewhere it is only a lower
bound (device sets that overlap in part; full devices and much sync: 1+1, 2+2 and 1+1+2 s on one
pair take 4.5 s, not 4). There the period is the maximum cycle mean of the event graph, of the given
cyclic order or of the best one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rmux.cluster import DeviceId
from rmux.errors import InternalError
from rmux.group import Member
from rmux.ids import JobId

EXHAUSTIVE_UP_TO = 6
"""Jobs for which every cyclic order is tried; beyond, exchanges improve the given order."""

CLOSE = 1 + 1e-9
"""Seconds that differ by less than this factor are equal."""


class Term(StrEnum):
    """What binds a period."""

    CYCLE = "cycle"
    """One job's own loop."""
    ROLLOUT_LOAD = "rollout load"
    TRAIN_LOAD = "train load"
    ORDER = "order"
    """Jobs that wait for each other in their cyclic order, longer than any single term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    period_s: float
    binding: Term
    subject: str
    """The job of the binding cycle, the device of the binding load, or the jobs in order."""
    binding_s: float
    order: tuple[JobId, ...]
    """The cyclic order it holds for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What a period needs of one job; switch time is inside the phases."""

    job_id: JobId
    rollout_s: float
    train_s: float
    off_device_s: float
    rollout: frozenset[DeviceId]
    train: frozenset[DeviceId]

    @property
    def solo_s(self) -> float:
        return self.rollout_s + self.train_s + self.off_device_s


def loop_of(member: Member) -> Loop:
    return Loop(
        job_id=member.job_id,
        rollout_s=member.profile.rollout.planned_s,
        train_s=member.profile.train.planned_s,
        off_device_s=member.profile.off_device_s,
        rollout=frozenset(member.placement.rollout),
        train=frozenset(member.placement.train),
    )


def period(members: Iterable[Member], *, order: Sequence[JobId] | None = None) -> Period:
    """The group's period, seconds: in `order` if given, else in the best cyclic order."""
    return period_of([loop_of(member) for member in members], order=order)


def period_of(loops: Sequence[Loop], *, order: Sequence[JobId] | None = None) -> Period:
    """`period` of bare loops."""
    if not loops:
        raise InternalError("a group without members has no period")
    if order is not None:
        loops = sorted(loops, key=lambda loop: order.index(loop.job_id))
    bound = largest_term(loops)
    if is_closed_form(loops, bound.period_s):
        return bound
    if order is not None:
        return _ordered(loops, bound, _cycle_mean(loops, bound.period_s))
    goal_s = max(bound.period_s, heaviest_clique_s(loops)) * CLOSE
    found_s, best = _search(loops, bound.period_s, goal_s)
    return _ordered(best, bound, found_s)


def largest_term(loops: Sequence[Loop]) -> Period:
    """The largest job loop or device load: a lower bound, and often exact."""
    longest = max(loops, key=lambda loop: loop.solo_s)
    terms = [(longest.solo_s, Term.CYCLE, str(longest.job_id)), *_load_terms(loops)]
    value_s, term, subject = max(terms, key=lambda item: item[0])
    return Period(
        period_s=value_s,
        binding=term,
        subject=subject,
        binding_s=value_s,
        order=tuple(loop.job_id for loop in loops),
    )


def largest_load_s(loops: Sequence[Loop]) -> float:
    """Seconds per round on the busiest device of either pool."""
    return max(value_s for value_s, _, _ in _load_terms(loops))


def _load_terms(loops: Sequence[Loop]) -> Iterator[tuple[float, Term, str]]:
    for term, loads in (
        (Term.ROLLOUT_LOAD, device_loads_s((loop.rollout, loop.rollout_s) for loop in loops)),
        (Term.TRAIN_LOAD, device_loads_s((loop.train, loop.train_s) for loop in loops)),
    ):
        if loads:
            device = max(sorted(loads), key=lambda key: loads[key])
            yield loads[device], term, str(device)


def device_loads_s(uses: Iterable[tuple[frozenset[DeviceId], float]]) -> dict[DeviceId, float]:
    """Seconds per round on each device."""
    loads: dict[DeviceId, float] = {}
    for devices, seconds in uses:
        for device in devices:
            loads[device] = loads.get(device, 0.0) + seconds
    return loads


def is_closed_form(loops: Sequence[Loop], bound_s: float) -> bool:
    """Whether the largest term is known to be the period."""
    return not overlaps(loops) and any(
        max(loads.values(), default=0.0) <= bound_s * CLOSE
        for loads in (
            device_loads_s((loop.train, loop.train_s + loop.off_device_s) for loop in loops),
            device_loads_s((loop.rollout, loop.rollout_s + loop.off_device_s) for loop in loops),
        )
    )


def overlaps(loops: Sequence[Loop]) -> bool:
    """Whether rollout device sets overlap in part, or train device sets differ."""
    if any(loop.train != loops[0].train for loop in loops):
        return True
    sets = {loop.rollout for loop in loops}
    return sum(map(len, sets)) != len(frozenset().union(*sets))


def heaviest_clique_s(loops: Sequence[Loop]) -> float:
    """Largest sum of rollouts that pairwise share a device and so run one after the other."""

    def grow(chosen: list[Loop], rest: Sequence[Loop]) -> float:
        best = sum(loop.rollout_s for loop in chosen)
        for index, loop in enumerate(rest):
            if all(loop.rollout & other.rollout for other in chosen):
                best = max(best, grow([*chosen, loop], rest[index + 1 :]))
        return best

    return grow([], loops)


def _search(loops: Sequence[Loop], bound_s: float, goal_s: float) -> tuple[float, Sequence[Loop]]:
    """(period, order): the best of all cyclic orders, or the best that exchanges lead to."""
    best: Sequence[Loop] = loops
    best_s = _cycle_mean(best, bound_s)
    improved = True
    while improved and best_s > goal_s:
        improved = False
        for candidate in _neighbours(best):
            candidate_s = _cycle_mean(candidate, bound_s)
            if candidate_s * CLOSE < best_s:
                best, best_s, improved = candidate, candidate_s, True
            if best_s <= goal_s:
                break
        # Every order was tried in the one pass of a small group.
        improved = improved and len(loops) > EXHAUSTIVE_UP_TO
    return best_s, best


def _neighbours(loops: Sequence[Loop]) -> Iterator[list[Loop]]:
    first, *rest = loops
    if len(loops) <= EXHAUSTIVE_UP_TO:
        yield from ([first, *order] for order in itertools.permutations(rest))
        return
    for left, right in itertools.combinations(range(len(loops)), 2):
        swapped = list(loops)
        swapped[left], swapped[right] = swapped[right], swapped[left]
        yield swapped


def _ordered(loops: Sequence[Loop], bound: Period, period_s: float) -> Period:
    order = tuple(loop.job_id for loop in loops)
    if period_s <= bound.period_s * CLOSE:
        return replace(bound, order=order)
    return Period(
        period_s=period_s,
        binding=Term.ORDER,
        subject=", ".join(order),
        binding_s=period_s,
        order=order,
    )


_Arc = tuple[int, int, float, int]
"""(from, to, seconds, tokens): `to` starts that long after `from`, `tokens` rounds later."""


def _cycle_mean(loops: Sequence[Loop], bound_s: float) -> float:
    """Maximum cycle mean of the event graph of one cyclic order; `bound_s` is a lower bound.

    Each circuit that is still positive at the current guess raises the guess to its own mean, so
    the last guess is the mean of a real circuit: exact.
    """
    arcs = list(_arcs(loops))
    mean_s = bound_s
    while (circuit := _positive_circuit(2 * len(loops), arcs, mean_s)) is not None:
        mean_s = sum(arc[2] for arc in circuit) / sum(arc[3] for arc in circuit)
    return mean_s


def _arcs(loops: Sequence[Loop]) -> Iterator[_Arc]:
    """Event 2i is the rollout of the i-th loop, event 2i+1 its train."""
    for index, loop in enumerate(loops):
        yield 2 * index, 2 * index + 1, loop.rollout_s, 0
        yield 2 * index + 1, 2 * index, loop.train_s + loop.off_device_s, 1
    for offset, uses in (
        (0, [(loop.rollout, loop.rollout_s) for loop in loops]),
        (1, [(loop.train, loop.train_s) for loop in loops]),
    ):
        for device in frozenset().union(*(devices for devices, _ in uses)):
            ring = [index for index, (devices, _) in enumerate(uses) if device in devices]
            for here, there in zip(ring, [*ring[1:], ring[0]], strict=True):
                token = 1 if there <= here else 0
                yield 2 * here + offset, 2 * there + offset, uses[here][1], token


def _positive_circuit(size: int, arcs: Sequence[_Arc], mean_s: float) -> list[_Arc] | None:
    """A circuit whose mean exceeds `mean_s`, by Bellman and Ford's longest paths."""
    tolerance = 1e-12 * max(1.0, mean_s)
    reach = [0.0] * size
    via: list[_Arc | None] = [None] * size
    last = -1
    for _ in range(size):
        last = -1
        for arc in arcs:
            start, end, seconds, tokens = arc
            gained = reach[start] + seconds - tokens * mean_s
            if gained > reach[end] + tolerance:
                reach[end], via[end], last = gained, arc, end
        if last < 0:
            return None
    for _ in range(size):  # far enough back to stand on the circuit
        last = _arc_to(via, last)[0]
    circuit: list[_Arc] = []
    node = last
    while not circuit or node != last:
        circuit.append(_arc_to(via, node))
        node = circuit[-1][0]
    return circuit


def _arc_to(via: Sequence[_Arc | None], node: int) -> _Arc:
    arc = via[node]
    if arc is None:
        raise InternalError("a positive circuit was lost")
    return arc
