"""Each group's price is charged to its members, to the last bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmux.group import CoExecGroup
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Phase
from rmux.place import charge
from rmux.timeline import Hold


def test_members_are_charged_by_the_device_seconds_they_hold(lab):
    group = lab.group(lab.member("a", 30, 10), lab.member("b", 10, 10))
    part = charge.shares(group, lab.cluster())
    assert part == {"j-a": pytest.approx(5 * 40 / 60), "j-b": pytest.approx(5 * 20 / 60)}


def test_a_job_on_two_devices_holds_twice_the_device_seconds(lab):
    group = lab.group(
        lab.member("a", 10, 5, ("r0", "r1")), lab.member("b", 10, 5, ("r0",)), name="g-1"
    )
    part = charge.shares(group, lab.cluster())
    assert part["j-a"] / part["j-b"] == pytest.approx(25 / 15)


def test_a_job_with_two_turns_in_the_round_is_charged_for_both(lab):
    members = (lab.member("a", 10, 10), lab.member("b", 10, 10))
    turns = tuple(JobId(name) for name in ("j-b", "j-a", "j-b"))
    part = charge.shares(lab.group(*members, turns=turns), lab.cluster())
    assert part["j-b"] == pytest.approx(2 * part["j-a"])


def test_switch_time_is_held_and_sync_is_not(lab):
    slow = lab.member("a", 10, 10, sync_s=100.0, checkpoint_s=50.0)
    group = lab.group(slow, lab.member("b", 10, 10))
    part = charge.shares(group, lab.cluster())
    assert part["j-a"] == part["j-b"]


def test_measured_seconds_count_instead_of_planned_ones(lab):
    group = lab.group(lab.member("a", 10, 10), lab.member("b", 10, 10))
    held_s = {JobId("j-a"): 300.0, JobId("j-b"): 100.0, JobId("j-gone"): 1e9}
    assert charge.shares(group, lab.cluster(), held_s=held_s) == {"j-a": 3.75, "j-b": 1.25}


def test_a_member_that_held_nothing_is_charged_nothing(lab):
    group = lab.group(lab.member("a", 10, 10), lab.member("b", 10, 10))
    part = charge.shares(group, lab.cluster(), held_s={JobId("j-a"): 1.0})
    assert part == {"j-a": 5.0, "j-b": 0.0}


def test_where_nobody_held_anything_yet_the_plan_counts(lab):
    group = lab.group(lab.member("a", 30, 10), lab.member("b", 10, 10))
    assert charge.shares(group, lab.cluster(), held_s={}) == charge.shares(group, lab.cluster())


def test_members_whose_phases_take_no_time_share_alike(lab):
    group = lab.group(lab.member("a", 0, 0), lab.member("b", 0, 0))
    assert charge.shares(group, lab.cluster()) == {"j-a": 2.5, "j-b": 2.5}


def test_a_group_without_members_is_charged_to_nobody_but_stays_in_the_bill(lab):
    empty = CoExecGroup(id=GroupId("g-2"), members=(), nodes=(NodeId("r1"), NodeId("t1")))
    alone = lab.group(replace(lab.member("a", 10, 10), tenant="math"))
    state = lab.state(alone, empty)
    assert charge.shares(empty, state.cluster) == {}
    assert charge.by_tenant(state) == {charge.UNASSIGNED: 5.0, "math": 5.0}
    assert charge.bill_usd_per_h(state) == 10.0


def test_a_tenant_is_charged_for_its_jobs_in_every_group(lab):
    first = lab.group(
        replace(lab.member("a", 30, 10), tenant="math"),
        replace(lab.member("b", 10, 10), tenant="code"),
    )
    second = lab.group(
        replace(lab.member("c", 10, 10, ("r1",), ("t1",)), tenant="math"), name="g-2"
    )
    charged = charge.by_tenant(lab.state(first, second))
    assert charged == {"math": pytest.approx(5 + 5 * 40 / 60), "code": pytest.approx(5 * 20 / 60)}


@settings(max_examples=300, deadline=None)
@given(
    usd_per_h=st.just(0.0) | st.floats(1e-6, 1e9),
    weights=st.lists(st.floats(0, 1e12), min_size=1, max_size=12),
    seed=st.randoms(use_true_random=False),
)
def test_shares_add_up_to_the_price_exactly_in_any_order(usd_per_h, weights, seed):
    named = {JobId(f"j-{n}"): weight for n, weight in enumerate(weights)}
    part = charge.split(usd_per_h, named)
    amounts = list(part.values())
    seed.shuffle(amounts)
    assert sum(amounts) == usd_per_h
    assert min(amounts) >= 0
    total = math.fsum(weights)
    if total > 0:
        for job, weight in named.items():
            exact = usd_per_h * (weight / total)
            assert part[job] == pytest.approx(exact, rel=1e-9, abs=usd_per_h * 1e-13)


_TIMES = st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.sampled_from(["", "math", "code"]))


@settings(
    max_examples=150,
    deadline=None,
    # A lab is immutable.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(groups=st.lists(st.lists(_TIMES, max_size=4), max_size=6), price=st.floats(0.01, 97.3))
def test_the_sum_over_tenants_is_the_bill(lab, groups, price):
    lab = replace(lab, rollout_usd=price, train_usd=price / 3)
    made = []
    for number, jobs in enumerate(groups):
        members = tuple(
            replace(lab.member(f"{number}-{n}", r, t, (f"r{number}",), (f"t{number}",)), tenant=who)
            for n, (r, t, who) in enumerate(jobs)
        )
        nodes = (NodeId(f"r{number}"), NodeId(f"t{number}"))
        made.append(CoExecGroup(id=GroupId(f"g-{number}"), members=members, nodes=nodes))
    state = lab.state(*made, cluster=lab.cluster(6, 6))
    held = sum(group.usd_per_h(state.cluster) for group in made)
    assert math.fsum(charge.by_tenant(state).values()) == pytest.approx(held, rel=1e-9)
    assert charge.bill_usd_per_h(state) == pytest.approx(held, rel=1e-9)


def turn(job: str, device: str, start_s: float, end_s: float | None) -> Hold:
    return Hold(
        device=device,
        job_id=JobId(job),
        iteration=1,
        phase=Phase.ROLLOUT,
        start_s=start_s,
        end_s=end_s,
    )


def test_what_members_held_is_counted_from_when_each_had_begun(lab):
    group = lab.group(lab.member("a", 10, 10), lab.member("b", 10, 10))
    before = [turn("j-a", "r0/0", at, at + 9) for at in range(0, 500, 10)]
    both = [turn("j-b", "r0/0", at, at + 2) for at in range(500, 700, 10)]
    both += [turn("j-a", "r0/0", at + 2, at + 8) for at in range(500, 700, 10)]
    running = [turn("j-a", "t0/0", 700, None), turn("j-gone", "t0/0", 500, 600)]
    held_s = charge.measured_held_s(group, [*before, *both, *running])
    assert held_s == {"j-b": 20 * 2.0, "j-a": 20 * 6.0}


def test_a_member_that_has_hardly_held_anything_leaves_it_to_the_plan(lab):
    group = lab.group(lab.member("a", 10, 10), lab.member("b", 10, 10))
    many = [turn("j-a", "r0/0", at, at + 9) for at in range(0, 500, 10)]
    few = [turn("j-b", "t0/0", at, at + 9) for at in range(0, 50, 10)]
    assert charge.measured_held_s(group, many) is None
    assert charge.measured_held_s(group, [*many, *few]) is None
    assert charge.measured_held_s(group, [*many, *few, turn("j-b", "t0/0", 90, 99)]) is not None


def test_groups_of_other_tenants_need_not_be_looked_at(lab):
    math = replace(lab.member("a", 10, 10), tenant="math")
    code = replace(lab.member("c", 10, 10, ("r1",), ("t1",)), tenant="code")
    state = lab.state(lab.group(math), lab.group(code, name="g-2"))
    assert charge.by_tenant(state, only={"math"}) == {"math": 5.0}
