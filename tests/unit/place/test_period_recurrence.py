"""The strict order as a recurrence: exactly the period, and never later for shorter phases."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.place.period import Loop, period_of

Seconds = tuple[int, int, int]
"""Of a rollout, a train and the time off the devices; integers, say milliseconds."""


@dataclass(frozen=True)
class Job:
    seconds: Seconds
    nodes: tuple[int, ...]
    max_staleness: int

    def loop(self, name: int) -> Loop:
        rollout, train, off = self.seconds
        return Loop(
            job_id=JobId(f"j{name}"),
            rollout_s=float(rollout),
            train_s=float(train),
            off_device_s=float(off),
            rollout=frozenset(DeviceId(NodeId(f"r{node}"), 0) for node in self.nodes),
            train=frozenset({DeviceId(NodeId("t"), 0)}),
            max_staleness=self.max_staleness,
        )


def ends(jobs: Sequence[Job], order: Sequence[int], durations: Iterable[Seconds]) -> list[int]:
    """When each turn's weights are synced, turn by turn; every phase as early as it can be."""
    node_free = [0] * 5
    train_free = 0
    synced: list[list[int]] = [[0] * (1 + job.max_staleness) for job in jobs]
    found = []
    for index, (rollout, train, off) in zip(itertools.cycle(order), durations):
        job = jobs[index]
        end = synced[index][-1 - job.max_staleness]
        for node in job.nodes:
            end = max(end, node_free[node])
        end += rollout
        for node in job.nodes:
            node_free[node] = end
        train_free = max(end, train_free, synced[index][-1]) + train
        synced[index].append(train_free + off)
        found.append(train_free + off)
    return found


def planned(jobs: Sequence[Job], order: Sequence[int]) -> list[Seconds]:
    """The phases of one round."""
    return [jobs[index].seconds for index in order]


def drawn(rng: random.Random, *, longest: int) -> tuple[list[Job], list[int]]:
    """Jobs and an order in which some may have several turns."""
    jobs = [
        Job(
            seconds=(
                rng.randint(0, longest),
                rng.randint(1, longest),
                rng.choice((0, rng.randint(0, longest))),
            ),
            nodes=tuple(rng.sample(range(5), rng.randint(1, 3))),
            max_staleness=rng.choice((0, 0, 1)),
        )
        for _ in range(rng.randint(2, 4))
    ]
    order = list(range(len(jobs))) + [
        rng.randrange(len(jobs)) for _ in range(rng.choice((0, 0, 2)))
    ]
    rng.shuffle(order)
    return jobs, order


def test_a_strict_order_repeats_exactly_at_the_period():
    rng = random.Random(5)
    for _ in range(300):
        jobs, order = drawn(rng, longest=60)
        loops = [job.loop(name) for name, job in enumerate(jobs)]
        expected_s = period_of(loops, order=[loops[index].job_id for index in order]).period_s
        found = ends(jobs, order, planned(jobs, order) * 120)
        last = found[len(order) - 1 :: len(order)]
        # The pattern has as many rounds as its slowest circuit: at most one per turn and weights.
        patterns = range(1, 2 * len(order) + 1)
        assert any(
            last[-1] - last[-1 - rounds] == round(rounds * expected_s, 6) for rounds in patterns
        ), (jobs, order)


def test_shorter_phases_never_make_anything_later():
    rng = random.Random(7)
    earlier = 0
    for _ in range(10_000):
        jobs, order = drawn(rng, longest=20)
        worst = planned(jobs, order) * 5
        real = [tuple(rng.randint(0, most) for most in phases) for phases in worst]
        then, now = ends(jobs, order, worst), ends(jobs, order, real)
        assert all(map(operator.le, now, then)), (jobs, order)
        earlier += now != then
    assert earlier > 9_000


def test_worst_case_phases_end_within_the_period_of_each_round():
    """Admission promises the period: n rounds take no longer than n periods and one first round."""
    rng = random.Random(9)
    for _ in range(500):
        jobs, order = drawn(rng, longest=20)
        loops = [job.loop(name) for name, job in enumerate(jobs)]
        period_s = period_of(loops, order=[loops[index].job_id for index in order]).period_s
        found = ends(jobs, order, planned(jobs, order) * 30)
        start = sum(sum(jobs[index].seconds) for index in order)
        for turn, end in enumerate(found):
            assert end <= start + (turn // len(order)) * period_s + 1e-6
