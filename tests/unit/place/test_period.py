"""The period: closed form, counterexamples to it, and an independent phase simulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.cluster import DeviceId
from rmux.errors import InternalError
from rmux.ids import JobId, NodeId
from rmux.place.period import Loop, Term, heaviest_clique_s, largest_term, overlaps, period_of


def loop(name: str, rollout_s: float, train_s: float, nodes: Sequence[int], off_s: float = 0):
    return Loop(
        job_id=JobId(name),
        rollout_s=rollout_s,
        train_s=train_s,
        off_device_s=off_s,
        rollout=frozenset(DeviceId(NodeId(f"r{node}"), 0) for node in nodes),
        train=frozenset({DeviceId(NodeId("t"), 0)}),
    )


def simulated_period_s(loops: Sequence[Loop]) -> float:
    """Strict cyclic order, phase by phase, as early as possible; no event graph."""
    free: dict[DeviceId, float] = {}
    ready = {one.job_id: 0.0 for one in loops}
    ends = []
    rollout_end: dict[JobId, float] = {}
    for _ in range(180):
        for one in loops:
            begin = max([ready[one.job_id], *(free.get(d, 0.0) for d in one.rollout)])
            rollout_end[one.job_id] = begin + one.rollout_s
            free.update(dict.fromkeys(one.rollout, begin + one.rollout_s))
        for one in loops:
            begin = max([rollout_end[one.job_id], *(free.get(d, 0.0) for d in one.train)])
            free.update(dict.fromkeys(one.train, begin + one.train_s))
            ready[one.job_id] = begin + one.train_s + one.off_device_s
        ends.append(ready[loops[0].job_id])
    # A strict order becomes periodic, with a pattern of at most as many rounds as jobs.
    return (ends[-1] - ends[-61]) / 60


def best_simulated_s(loops: Sequence[Loop]) -> float:
    first, *rest = loops
    return min(simulated_period_s([first, *order]) for order in itertools.permutations(rest))


COUNTEREXAMPLES = {
    "L-shape": ([("a", 20, 20, [0]), ("b", 19, 18, [1]), ("c", 19, 1, [0, 1])], 40, 48),
    "triangle": (
        [("a", 100, 140, [0, 1]), ("b", 100, 50, [1, 2]), ("c", 100, 50, [0, 2])],
        240,
        300,
    ),
    "nested": ([("a", 18, 7, [0, 1]), ("b", 18, 6, [2]), ("c", 7, 11, [0, 1, 2])], 25, 28),
    "4 nodes": (
        [("a", 10, 6, [0, 3]), ("b", 17, 5, [0, 1, 2]), ("c", 11, 19, [2, 3])],
        30,
        38,
    ),
}


@pytest.mark.parametrize("name", COUNTEREXAMPLES)
def test_partly_overlapping_sets_take_longer_than_cycle_and_loads(name):
    jobs, terms_s, minimum_s = COUNTEREXAMPLES[name]
    loops = [loop(*job) for job in jobs]
    found = period_of(loops)
    assert found.period_s == pytest.approx(minimum_s)
    assert found.period_s > terms_s
    assert found.binding is Term.ORDER
    assert set(found.order) == {"a", "b", "c"}


def test_switch_time_is_part_of_the_loop():
    # 100 + 100 and 95 + 95 with 5 s per switch: the loads say 205, the loop of a says 210.
    found = period_of([loop("a", 105, 105, [0]), loop("b", 100, 100, [0])])
    assert found.period_s == 210
    assert (found.binding, found.subject) == (Term.CYCLE, "a")


def test_the_binding_device_is_named():
    found = period_of([loop("a", 30, 10, [0]), loop("b", 30, 10, [0]), loop("c", 5, 5, [1])])
    assert (found.period_s, found.binding, found.subject) == (60, Term.ROLLOUT_LOAD, "r0/0")
    found = period_of([loop("a", 10, 30, [0]), loop("b", 10, 30, [1])])
    assert (found.period_s, found.binding, found.subject) == (60, Term.TRAIN_LOAD, "t/0")


def test_a_job_alone_takes_its_solo_time():
    assert period_of([loop("a", 3, 4, [0, 1], 2)]).period_s == 9


def test_sync_off_the_devices_loads_no_device():
    found = period_of([loop("a", 10, 10, [0], 20), loop("b", 10, 10, [0], 20)])
    assert found.period_s == 40


def test_a_group_without_members_is_refused():
    with pytest.raises(InternalError, match="no period"):
        period_of([])


def test_a_given_order_is_the_one_measured():
    loops = [loop(*job) for job in COUNTEREXAMPLES["4 nodes"][0]]
    for order in itertools.permutations(loops):
        names = [one.job_id for one in order]
        found = period_of(loops, order=names)
        assert found.order == tuple(names)
        assert found.period_s == pytest.approx(simulated_period_s(order))


def test_the_best_order_beats_the_worst_one():
    loops = [
        loop("a", 10, 2, [0, 1]),
        loop("b", 10, 2, [2, 3]),
        loop("c", 10, 2, [1, 2]),
        loop("d", 10, 2, [0, 3]),
    ]
    best = period_of(loops)
    worst = period_of(loops, order=[JobId("a"), JobId("c"), JobId("b"), JobId("d")])
    assert best.period_s == pytest.approx(20)
    assert worst.period_s > 1.4 * best.period_s


def test_large_groups_start_from_the_given_order_and_improve_it():
    loops = [loop(f"j{i}", 10, 1, [i % 4, (i + 1) % 4]) for i in range(7)]
    given_order = period_of(loops, order=[one.job_id for one in loops])
    found = period_of(loops)
    assert found.period_s <= given_order.period_s
    exact = period_of(loops, order=found.order)
    assert exact.period_s == pytest.approx(found.period_s)


node_sets = st.sets(st.integers(0, 3), min_size=1, max_size=3).map(sorted)


@st.composite
def groups(draw, sets=node_sets, max_size=4):
    size = draw(st.integers(1, max_size))
    seconds = st.integers(1, 30)
    return [
        loop(f"j{i}", draw(seconds), draw(seconds), draw(sets), draw(st.integers(0, 15)))
        for i in range(size)
    ]


@settings(max_examples=40, deadline=None)
@given(loops=groups())
def test_the_period_is_the_best_simulated_strict_order(loops):
    assert period_of(loops).period_s == pytest.approx(best_simulated_s(loops))


equal_or_disjoint = st.sampled_from([[0], [1], [2, 3]])


@settings(max_examples=40, deadline=None)
@given(loops=groups(sets=equal_or_disjoint, max_size=5))
def test_equal_or_disjoint_sets_take_what_a_simulation_of_their_order_takes(loops):
    assert not overlaps(loops)
    order = [one.job_id for one in loops]
    assert period_of(loops, order=order).period_s == pytest.approx(simulated_period_s(loops))


@settings(max_examples=40, deadline=None)
@given(loops=groups(sets=equal_or_disjoint, max_size=5))
def test_without_time_off_the_devices_the_closed_form_holds_in_any_order(loops):
    loops = [replace(one, off_device_s=0) for one in loops]
    assert simulated_period_s(loops) == pytest.approx(largest_term(loops).period_s)


def test_full_devices_leave_no_room_for_much_sync():
    loops = [loop("a", 1, 1, [0]), loop("b", 2, 2, [0]), loop("c", 1, 1, [0], off_s=2)]
    assert largest_term(loops).period_s == 4
    assert best_simulated_s(loops) == pytest.approx(4.5)
    found = period_of(loops)
    assert (found.period_s, found.binding) == (pytest.approx(4.5), Term.ORDER)


@settings(max_examples=40, deadline=None)
@given(loops=groups(max_size=5), data=st.data())
def test_shorter_phases_never_lengthen_a_given_order(loops, data):
    order = [one.job_id for one in loops]
    less = [
        loop(
            one.job_id,
            data.draw(st.integers(0, int(one.rollout_s))),
            data.draw(st.integers(0, int(one.train_s))),
            [int(device.node[1:]) for device in one.rollout],
            data.draw(st.integers(0, int(one.off_device_s))),
        )
        for one in loops
    ]
    assert period_of(less, order=order).period_s <= period_of(loops, order=order).period_s + 1e-9


@settings(max_examples=40, deadline=None)
@given(loops=groups(max_size=5))
def test_no_term_and_no_clique_exceeds_the_period(loops):
    found = period_of(loops).period_s + 1e-9
    assert found >= max(one.solo_s for one in loops)
    assert found >= heaviest_clique_s(loops)


@settings(max_examples=40, deadline=None)
@given(loops=groups(max_size=5))
def test_a_subset_never_takes_longer(loops):
    assert period_of(loops[:-1] or loops).period_s <= period_of(loops).period_s + 1e-9
