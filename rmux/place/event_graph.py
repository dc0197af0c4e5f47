"""The period of a strict cyclic order, as the maximum cycle mean of its event graph.

An order is a round of turns; a job with k iterations a round has k of them. Every turn makes two
events, the start of its rollout and of its train. An arc says that an event comes at least so many
seconds after another, of the same round or of one some rounds (tokens) before: the rollout before
its train; a train, with its sync, before the rollout that samples under its weights and before the
job's own next train; and on each device one turn before the next. The system then repeats every
max(seconds / tokens) over all circuits: max-plus algebra, Baccelli et al., Synchronization and
Linearity, ch. 2 and 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rmux.errors import InternalError

EXHAUSTIVE_UP_TO = 6
"""Turns for which every cyclic order is tried; beyond, exchanges improve the given order."""

MOST_ORDERS = 500
"""Orders looked at by exchanges."""

MOST_CLIQUES = 5000
"""Cliques looked at for the heaviest."""

CLOSE = 1 + 1e-9
"""Seconds that differ by less than this factor are equal."""

Order = tuple[int, ...]
"""Jobs by their index, in the cyclic order of a round."""

T = TypeVar("T")

_Arc = tuple[int, int, float, int]
"""(from, to, seconds, tokens): `to` starts that long after `from`, `tokens` rounds later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGraph:
    """What every order of some jobs has in common; one entry per job, switch inside the phases."""

    rollout_s: tuple[float, ...]
    train_s: tuple[float, ...]
    off_device_s: tuple[float, ...]
    max_staleness: tuple[int, ...]
    rollout_rings: tuple[int, ...]
    """For each rollout device the jobs on it, as bits; one of equal or smaller ones is enough."""
    train_rings: tuple[int, ...]

    def cycle_mean_s(
        self, order: Order, *, floor_s: float, cutoff_s: float = float("inf")
    ) -> float:
        """Seconds per round in this order, where `floor_s` is known to be a lower bound.

        Each circuit that is still positive at the current guess raises the guess to its own mean,
        so the last guess is the floor or the mean of a real circuit: exact. From `cutoff_s` on only
        a lower bound.
        """
        arcs = self._arcs(order)
        mean_s = floor_s
        while mean_s < cutoff_s:
            circuit = _positive_circuit(2 * len(order), arcs, mean_s)
            if circuit is None:
                break
            higher_s = sum(arc[2] for arc in circuit) / sum(arc[3] for arc in circuit)
            if higher_s <= mean_s:
                break
            mean_s = higher_s
        return mean_s

    def _arcs(self, order: Order) -> list[_Arc]:
        """Event 2p is the rollout of turn p, 2p+1 its train; sorted so that time flows forward."""
        turns: dict[int, list[int]] = {}
        arcs: list[_Arc] = []
        for place, job in enumerate(order):
            turns.setdefault(job, []).append(place)
            arcs.append((2 * place, 2 * place + 1, self.rollout_s[job], 0))
        for job, places in turns.items():
            busy_s = self.train_s[job] + self.off_device_s[job]
            ahead = 1 + self.max_staleness[job]
            for nth, place in enumerate(places, start=ahead):
                tokens, there = divmod(nth, len(places))
                arcs.append((2 * place + 1, 2 * places[there], busy_s, tokens))
            if ahead > 1:  # else its next train comes after the rollout that waits for this one
                for nth, place in enumerate(places, start=1):
                    tokens, there = divmod(nth, len(places))
                    arcs.append((2 * place + 1, 2 * places[there] + 1, busy_s, tokens))
        for shift, rings, seconds in (
            (0, self.rollout_rings, self.rollout_s),
            (1, self.train_rings, self.train_s),
        ):
            for ring in rings:
                here = [place for place, job in enumerate(order) if ring >> job & 1]
                for at, then in itertools.pairwise(here):
                    arcs.append((2 * at + shift, 2 * then + shift, seconds[order[at]], 0))
                last, first = here[-1], here[0]
                arcs.append((2 * last + shift, 2 * first + shift, seconds[order[last]], 1))
        arcs.sort()
        return arcs


def best_order(
    graph: EventGraph,
    turns: Order,
    *,
    goal_s: float,
    cutoff_s: float = float("inf"),
) -> tuple[float, Order]:
    """(period, order): the best cyclic order of the turns, or the best that exchanges lead to.

    The order of `turns` itself wins ties. `goal_s` is a lower bound of them all, so the search ends
    at the first order that reaches it. Seconds from `cutoff_s` on are only a lower bound.
    """
    best, best_s = turns, graph.cycle_mean_s(turns, floor_s=goal_s, cutoff_s=cutoff_s)
    improved, left = goal_s < cutoff_s, MOST_ORDERS
    while improved and best_s > goal_s * CLOSE:
        improved = False
        for candidate in itertools.islice(_neighbours(best), left):
            left -= 1
            found_s = graph.cycle_mean_s(candidate, floor_s=goal_s, cutoff_s=best_s)
            if found_s * CLOSE < best_s:
                best, best_s, improved = candidate, found_s, True
                if best_s <= goal_s * CLOSE:
                    break
        # Every order was tried in the one pass over few turns.
        improved = improved and len(turns) > EXHAUSTIVE_UP_TO
    return best_s, best


def atoms(sets: Iterable[frozenset[T]]) -> list[tuple[int, frozenset[T]]]:
    """(which sets hold them, as bits; devices): devices that the very same sets hold together."""
    found: list[tuple[int, frozenset[T]]] = []
    for index, devices in enumerate(sets):
        rest, parts = devices, []
        for users, some in found:
            both = some & rest
            if both:
                parts.append((users | 1 << index, both))
                rest -= both
                some -= both
            if some:
                parts.append((users, some))
        if rest:
            parts.append((1 << index, rest))
        found = parts
    return found


def rings_of(sets: Iterable[frozenset[T]]) -> tuple[int, ...]:
    """The rings of the devices that each job holds; the longer implies the order of the shorter."""
    kept: list[int] = []
    found = {users for users, _ in atoms(sets)}
    for ring in sorted(found, key=lambda users: (-users.bit_count(), users)):
        if all(ring & other != ring for other in kept):
            kept.append(ring)
    return tuple(kept)


def heaviest_clique(rings: Sequence[int], seconds: Sequence[float]) -> float:
    """Largest sum over jobs that pairwise share a device and so run one after the other.

    Of more than `MOST_CLIQUES` only the heaviest met: still a lower bound of every period.
    """
    beside = [0] * len(seconds)
    for ring in rings:
        for job in range(len(seconds)):
            if ring >> job & 1:
                beside[job] |= ring
    best, looked_at = 0.0, 0

    def grow(first: int, allowed: int, chosen_s: float, rest_s: float) -> None:
        nonlocal best, looked_at
        best, looked_at = max(best, chosen_s), looked_at + 1
        for job in range(first, len(seconds)):
            if chosen_s + rest_s <= best or looked_at > MOST_CLIQUES:
                return
            if allowed >> job & 1:
                more, more_s = allowed & beside[job], 0.0
                for other in range(job + 1, len(seconds)):
                    if more >> other & 1:
                        more_s += seconds[other]
                grow(job + 1, more, chosen_s + seconds[job], more_s)
                rest_s -= seconds[job]

    grow(0, (1 << len(seconds)) - 1, 0.0, sum(seconds))
    return best


def _neighbours(turns: Order) -> Iterator[Order]:
    if len(turns) <= EXHAUSTIVE_UP_TO:
        rest = itertools.permutations(turns[1:])
        yield from ((turns[0], *order) for order in dict.fromkeys(rest))
        return
    for left, right in itertools.combinations(range(len(turns)), 2):
        if turns[left] != turns[right]:
            swapped = list(turns)
            swapped[left], swapped[right] = swapped[right], swapped[left]
            yield tuple(swapped)


def _positive_circuit(size: int, arcs: Sequence[_Arc], mean_s: float) -> list[_Arc] | None:
    """A circuit whose mean exceeds `mean_s`, by Bellman and Ford's longest paths."""
    tolerance = 1e-12 * max(1.0, mean_s)
    weights = [seconds - tokens * mean_s for _, _, seconds, tokens in arcs]
    reach = [0.0] * size
    via: list[_Arc | None] = [None] * size
    for _ in range(size + 1):
        settled = True
        for arc, weight in zip(arcs, weights, strict=True):
            gained = reach[arc[0]] + weight
            if gained > reach[arc[1]] + tolerance:
                reach[arc[1]], via[arc[1]], settled = gained, arc, False
        if settled:
            return None
        circuit = _closed_path(via)
        if circuit:
            return circuit
    raise InternalError("longest paths neither settled nor closed a circuit")


def _closed_path(via: Sequence[_Arc | None]) -> list[_Arc]:
    """The arcs of a circuit among the last arcs of the longest paths; empty when there is none."""
    seen = [0] * len(via)
    for start in range(len(via)):
        node = start
        while not seen[node]:
            seen[node] = start + 1
            arc = via[node]
            if arc is None:
                break
            node = arc[0]
        else:
            if seen[node] != start + 1:
                continue
            circuit: list[_Arc] = []
            last = node
            while not circuit or node != last:
                back = via[node]
                if back is None:
                    raise InternalError("a circuit was lost")
                circuit.append(back)
                node = back[0]
            return circuit
    return []
