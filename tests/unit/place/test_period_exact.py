"""The period against an exact model that knows no event graph: CP-SAT on a circle of length L."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
from ortools.sat.python import cp_model

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.place.period import Loop, heaviest_clique_s, largest_term, period_of

ROUNDS = 6
"""How far apart, in rounds, the phases of one round may start."""


class Circle:
    """Integer starts of one rollout and one train per turn, repeated every `length`."""

    def __init__(self, turns: Sequence[Loop], length: int) -> None:
        self.turns, self.length = turns, length
        self.model = cp_model.CpModel()
        self.rollouts = [self._start(ROUNDS) for _ in turns]
        self.trains = [self._start(ROUNDS + 3) for _ in turns]
        for index, one in enumerate(turns):
            self.model.add(self.trains[index] >= self.rollouts[index] + int(one.rollout_s))
            places = [at for at, other in enumerate(turns) if other.job_id == one.job_id]
            later, there = divmod(places.index(index) + 1 + one.max_staleness, len(places))
            self.model.add(
                self.rollouts[places[there]] + later * length
                >= self.trains[index] + int(one.train_s + one.off_device_s)
            )
            later, there = divmod(places.index(index) + 1, len(places))
            self.model.add(
                self.trains[places[there]] + later * length
                >= self.trains[index] + int(one.train_s + one.off_device_s)
            )

    def _start(self, rounds: int) -> cp_model.IntVar:
        return self.model.new_int_var(0, rounds * self.length, "")

    def shared(self) -> list[tuple[int, int, list[tuple]]]:
        """Pairs of turns with the (start, start, seconds, seconds) of the pools they share."""
        found = []
        for left, right in itertools.combinations(range(len(self.turns)), 2):
            a, b = self.turns[left], self.turns[right]
            pools = []
            if a.rollout & b.rollout:
                starts = self.rollouts[left], self.rollouts[right]
                pools.append((*starts, int(a.rollout_s), int(b.rollout_s)))
            if a.train & b.train:
                starts = self.trains[left], self.trains[right]
                pools.append((*starts, int(a.train_s), int(b.train_s)))
            found.append((left, right, pools))
        return found

    def is_feasible(self) -> bool:
        if any(max(one.rollout_s, one.train_s) > self.length for one in self.turns):
            return False
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        status = solver.solve(self.model)
        assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE)
        return status != cp_model.INFEASIBLE


def any_schedule(turns: Sequence[Loop], length: int) -> bool:
    """Each pool in any order, with any number of rounds between a rollout and its train."""
    circle = Circle(turns, length)
    for _, _, pools in circle.shared():
        for start, other, seconds, other_s in pools:
            rounds = circle.model.new_int_var(-2 * ROUNDS, 2 * ROUNDS, "")
            circle.model.add(other - start + rounds * length >= seconds)
            circle.model.add(other - start + rounds * length <= length - other_s)
    return circle.is_feasible()


def any_order(turns: Sequence[Loop], length: int) -> bool:
    """One strict order for both pools; which one is left to the model."""
    circle = Circle(turns, length)
    for _, _, pools in circle.shared():
        first = circle.model.new_bool_var("")
        for start, other, seconds, other_s in pools:
            circle.model.add(start + seconds <= other).only_enforce_if(first)
            circle.model.add(other + other_s <= start + length).only_enforce_if(first)
            circle.model.add(other + other_s <= start).only_enforce_if(~first)
            circle.model.add(start + seconds <= other + length).only_enforce_if(~first)
    return circle.is_feasible()


def this_order(turns: Sequence[Loop], length: int) -> bool:
    circle = Circle(turns, length)
    for _, _, pools in circle.shared():
        for start, other, seconds, other_s in pools:
            circle.model.add(start + seconds <= other)
            circle.model.add(other + other_s <= start + length)
    return circle.is_feasible()


def shortest(turns: Sequence[Loop], fits: Callable[[Sequence[Loop], int], bool]) -> int:
    """The least whole L that fits, by bisection."""
    low, high = 1, int(sum(one.rollout_s + one.train_s + one.off_device_s for one in turns))
    while low < high:
        length = (low + high) // 2
        low, high = (low, length) if fits(turns, length) else (length + 1, high)
    return low


def whole(seconds: float) -> int:
    return math.ceil(seconds - 1e-9)


def loop(
    name: str,
    rollout_s: int,
    train_s: int,
    nodes: Sequence[int],
    off_s: int = 0,
    max_staleness: int = 0,
) -> Loop:
    return Loop(
        job_id=JobId(name),
        rollout_s=rollout_s,
        train_s=train_s,
        off_device_s=off_s,
        rollout=frozenset(DeviceId(NodeId(f"r{node}"), 0) for node in nodes),
        train=frozenset({DeviceId(NodeId("t"), 0)}),
        max_staleness=max_staleness,
    )


@pytest.mark.parametrize(
    ("jobs", "minimum_s"),
    [
        ([("a", 20, 20, [0]), ("b", 19, 18, [1]), ("c", 19, 1, [0, 1])], 48),
        ([("a", 100, 140, [0, 1]), ("b", 100, 50, [1, 2]), ("c", 100, 50, [0, 2])], 300),
        ([("a", 18, 7, [0, 1]), ("b", 18, 6, [2]), ("c", 7, 11, [0, 1, 2])], 28),
        ([("a", 10, 6, [0, 3]), ("b", 17, 5, [0, 1, 2]), ("c", 11, 19, [2, 3])], 38),
    ],
    ids=["L-shape", "triangle", "nested", "4 nodes"],
)
def test_no_schedule_at_all_is_shorter_than_the_counterexamples_period(jobs, minimum_s):
    loops = [loop(*job) for job in jobs]
    assert period_of(loops).period_s == pytest.approx(minimum_s)
    assert shortest(loops, any_schedule) == minimum_s
    assert largest_term(loops).period_s < minimum_s


def drawn(rng: random.Random, *, size: int, staleness: int) -> list[Loop]:
    return [
        loop(
            f"j{index}",
            rng.randint(1, 20),
            rng.randint(1, 20),
            rng.sample(range(4), rng.randint(1, 3)),
            rng.choice((0, 0, rng.randint(1, 20))),
            rng.randint(0, staleness),
        )
        for index in range(size)
    ]


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_period_is_that_of_the_best_order_of_an_exact_model(staleness):
    rng = random.Random(11 + staleness)
    beyond_terms = 0
    for _ in range(25):
        loops = drawn(rng, size=rng.randint(2, 4), staleness=staleness)
        found_s = period_of(loops).period_s
        assert whole(found_s) == shortest(loops, any_order), loops
        assert found_s >= heaviest_clique_s(loops)
        beyond_terms += found_s > largest_term(loops).period_s
    assert beyond_terms


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_period_of_a_round_with_repeats_is_that_of_an_exact_model(staleness):
    rng = random.Random(17 + staleness)
    for _ in range(25):
        loops = drawn(rng, size=rng.randint(2, 3), staleness=staleness)
        turns = [*loops, *(rng.choice(loops) for _ in range(rng.randint(1, 3)))]
        rng.shuffle(turns)
        found = period_of(loops, order=[one.job_id for one in turns])
        assert whole(found.period_s) == shortest(turns, this_order), turns
        for one in loops:
            turns_s = found.iteration_s(one.job_id) * found.order.count(one.job_id)
            assert turns_s == pytest.approx(found.period_s)
