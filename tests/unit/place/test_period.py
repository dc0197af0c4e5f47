"""The period: closed form, counterexamples to it, and an independent phase simulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.cluster import DeviceId
from rmux.errors import InternalError, NotFoundError
from rmux.ids import JobId, NodeId
from rmux.place.event_graph import EventGraph
from rmux.place.period import (
    Loop,
    Term,
    heaviest_clique_s,
    is_closed_form,
    is_saturated,
    largest_load_s,
    largest_term,
    loop_of,
    overlaps,
    period_of,
)


def loop(
    name: str,
    rollout_s: float,
    train_s: float,
    nodes: Sequence[int],
    off_s: float = 0,
    **limits: int,
) -> Loop:
    return Loop(
        job_id=JobId(name),
        rollout_s=rollout_s,
        train_s=train_s,
        off_device_s=off_s,
        rollout=frozenset(DeviceId(NodeId(f"r{node}"), 0) for node in nodes),
        train=frozenset({DeviceId(NodeId("t"), 0)}),
        **limits,
    )


def simulated_period_s(turns: Sequence[Loop]) -> float:
    """Seconds per round of a strict cyclic order, phase by phase, as early as possible."""
    free: dict[tuple[str, DeviceId], float] = {}
    synced: dict[JobId, list[float]] = {one.job_id: [] for one in turns}
    rounds = []
    for _ in range(180):
        for one in turns:
            weights = synced[one.job_id]
            lag = 1 + one.max_staleness
            begin = weights[-lag] if len(weights) >= lag else 0.0
            for pool, devices, seconds in (
                ("rollout", one.rollout, one.rollout_s),
                ("train", one.train, one.train_s),
            ):
                if pool == "train" and weights:
                    begin = max(begin, weights[-1])
                begin = max([begin, *(free.get((pool, device), 0.0) for device in devices)])
                begin += seconds
                free.update({(pool, device): begin for device in devices})
            weights.append(begin + one.off_device_s)
        rounds.append(begin)
    # A strict order becomes periodic, with a pattern of few rounds.
    return (rounds[-1] - rounds[-61]) / 60


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


def test_switch_time_is_part_of_the_phases(lab):
    # 100 + 100 and 95 + 95: 200 without a switch. With 5 s each the loads say 205, a's loop 210.
    members = [lab.member("a", 100, 100), lab.member("b", 95, 95)]
    assert period_of([loop_of(member) for member in members]).period_s == 200
    slower = [
        replace(
            one,
            profile=replace(
                one.profile,
                rollout=replace(one.profile.rollout, switch_s=5.0),
                train=replace(one.profile.train, switch_s=5.0),
            ),
        )
        for one in members
    ]
    loops = [loop_of(member) for member in slower]
    found = period_of(loops)
    assert found.period_s == 210
    assert (found.binding, found.subject) == (Term.CYCLE, "j-a")
    assert largest_load_s(loops) == 205


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


def test_a_group_is_saturated_from_where_its_load_equals_its_cycle():
    # The loop of a takes 40 s; its node serves 20 s of a and what b needs.
    for b_s, saturated in ((19.9, False), (20, True), (20.1, True)):
        loops = [loop("a", 20, 20, [0]), loop("b", b_s, 1, [0])]
        assert is_saturated(loops) is saturated
        assert period_of(loops).period_s == max(40, 20 + b_s)
    # 0.1 + 0.2 is not 0.3 in floating point; it is in seconds.
    assert is_saturated([loop("a", 0.1, 0.2, [0]), loop("b", 0.2, 0.1, [0])])
    assert is_saturated(
        [loop("a", 0.3, 0.6, [0]), loop("b", 0.1, 0.1, [1]), loop("c", 0.1, 0.2, [1])]
    )


def test_one_step_off_policy_a_job_alone_overlaps_its_own_phases():
    for times_s, expected_s in (
        ((100, 60, 20), 100),  # its rollout binds
        ((60, 100, 0), 100),  # its train
        ((60, 100, 20), 120),  # its train and sync, which take turns
        ((120, 60, 60), 120),
        ((60, 60, 100), 160),
    ):
        rollout_s, train_s, off_s = times_s
        one = loop("a", rollout_s, train_s, [0], off_s, max_staleness=1)
        assert one.solo_s == expected_s
        assert period_of([one]).period_s == expected_s
        assert replace(one, max_staleness=0).solo_s == sum(times_s)


def test_a_loop_is_what_its_member_plans_with(lab):
    member = replace(lab.member("a", 60, 60, sync_s=70.0, checkpoint_s=30.0), max_staleness=1)
    found = loop_of(replace(member, max_repeats=3))
    assert (found.off_device_s, found.max_staleness, found.max_repeats) == (100, 1, 3)
    assert found.solo_s == member.solo_s == 160


def test_off_policy_jobs_need_no_idle_time_for_each_other():
    # On-policy the loop of a takes 200 s; one step off-policy the devices are full at 150.
    loops = [loop("a", 100, 100, [0]), loop("b", 50, 50, [0])]
    assert period_of(loops).period_s == 200
    found = period_of([replace(one, max_staleness=1) for one in loops])
    assert (found.period_s, found.binding) == (150, Term.ROLLOUT_LOAD)


def test_a_group_without_members_is_refused():
    with pytest.raises(InternalError, match="no period"):
        period_of([])


def test_an_order_without_a_turn_for_everybody_is_refused():
    loops = [loop("a", 1, 1, [0]), loop("b", 1, 1, [0])]
    with pytest.raises(InternalError, match="a turn for every member"):
        period_of(loops, order=[JobId("a"), JobId("a")])


def test_who_left_has_no_turn_in_a_given_order():
    loops = [loop("a", 1, 1, [0]), loop("b", 1, 1, [0])]
    found = period_of(loops, order=[JobId("b"), JobId("gone"), JobId("a")])
    assert found.order == ("b", "a")
    with pytest.raises(NotFoundError, match="gone"):
        found.iteration_s(JobId("gone"))


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


def test_the_search_ends_at_the_first_order_that_reaches_a_lower_bound(monkeypatch):
    tried = []
    exact = EventGraph.cycle_mean_s

    def counted(graph, order, **options):
        tried.append(order)
        return exact(graph, order, **options)

    monkeypatch.setattr(EventGraph, "cycle_mean_s", counted)
    # Every pair of jobs shares a node, so any order takes the sum of the rollouts.
    loops = [loop(f"j{i}", 50, 1, [0, i]) for i in range(1, 5)]
    loops.append(loop("e", 50, 1, [1, 2, 3, 4]))
    assert period_of(loops).period_s == 250
    assert tried == [(0, 1, 2, 3, 4)]


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
        loop(
            f"j{i}",
            draw(seconds),
            draw(seconds),
            draw(sets),
            draw(st.integers(0, 15)),
            max_staleness=draw(st.sampled_from([0, 0, 1])),
        )
        for i in range(size)
    ]


@settings(max_examples=40, deadline=None)
@given(loops=groups())
def test_the_period_is_the_best_simulated_strict_order(loops):
    assert period_of(loops).period_s == pytest.approx(best_simulated_s(loops))


equal_or_disjoint = st.sampled_from([[0], [1], [2, 3]])


@settings(max_examples=40, deadline=None)
@given(loops=groups(sets=equal_or_disjoint, max_size=4))
def test_the_closed_form_holds_in_any_order_where_it_is_said_to(loops):
    for order in itertools.permutations(loops):
        if is_closed_form(order):
            assert simulated_period_s(order) == pytest.approx(largest_term(order).period_s)


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
    assert is_closed_form(loops)
    assert simulated_period_s(loops) == pytest.approx(largest_term(loops).period_s)


def test_full_devices_leave_no_room_for_much_sync():
    loops = [loop("a", 1, 1, [0]), loop("b", 2, 2, [0]), loop("c", 1, 1, [0], off_s=2)]
    assert largest_term(loops).period_s == 4
    assert best_simulated_s(loops) == pytest.approx(4.5)
    found = period_of(loops)
    assert (found.period_s, found.binding) == (pytest.approx(4.5), Term.ORDER)
    assert not is_closed_form(loops)


def test_there_is_room_for_sync_where_nobody_else_waits_for_the_node():
    # Full train pool, much sync: c has a node of its own and a circle with idle time.
    loops = [loop("a", 1, 4, [0]), loop("b", 1, 4, [0]), loop("c", 1, 2, [1], off_s=7)]
    assert is_closed_form(loops)
    assert period_of(loops).period_s == 10
    assert best_simulated_s(loops) == pytest.approx(10)


@settings(max_examples=40, deadline=None)
@given(loops=groups(max_size=5), data=st.data())
def test_shorter_phases_never_lengthen_a_given_order(loops, data):
    order = [one.job_id for one in loops]
    less = [
        replace(
            one,
            rollout_s=data.draw(st.integers(0, int(one.rollout_s))),
            train_s=data.draw(st.integers(0, int(one.train_s))),
            off_device_s=data.draw(st.integers(0, int(one.off_device_s))),
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
