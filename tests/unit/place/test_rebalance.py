"""Moves of standing jobs: where they pay back, each possible in its turn, every promise kept."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmux.cluster import Policy
from rmux.estimate import PhaseEstimate
from rmux.group import ClusterState
from rmux.ids import GroupId, JobId
from rmux.place.index import Index
from rmux.place.period import CLOSE, period
from rmux.place.rebalance import (
    MOVE_S,
    Rebalance,
    _Plan,
    asked_profile_of,
    cold_start_s,
    propose,
    spec_of,
    steps,
)
from rmux.place.target import Target, Targets


@pytest.fixture
def apart(lab):
    """Two jobs that would fit one pair of nodes, each on a pair of its own: 10 USD/h."""
    first = lab.group(lab.member("a", 50, 50), name="g-1")
    second = lab.group(lab.member("b", 50, 50, ("r1",), ("t1",)), name="g-2")
    return lab.state(first, second)


def carried_out(state, proposal):
    index = Index.of(state)
    members = {m.job_id: m for group in state.groups for m in group.members}
    for leaves, move in steps(proposal.moves):
        member = members[move.job_id]
        if leaves:
            index.remove(move.job_id)
            continue
        target = index.apply(
            move.assignment, spec=spec_of(member), profile=asked_profile_of(member)
        )
        assert target == move.target
    return index


def with_policy(state, **changes):
    return replace(state, cluster=replace(state.cluster, policy=Policy(**changes)))


def promises_kept(index):
    return all(
        period(group.members, order=group.round).iteration_s(member.job_id)
        <= member.slo * member.solo_s * CLOSE
        for group in index.groups()
        for member in group.members
    )


def test_two_small_groups_become_one(apart):
    found = propose(apart)
    assert [(move.name, move.price_s) for move in found.moves] == [(found.moves[0].name, MOVE_S)]
    assert (found.usd_per_h_before, found.usd_per_h_after, found.saves_usd_per_h) == (10, 5, 5)
    index = carried_out(apart, found)
    assert index.usd_per_h() == 5
    assert promises_kept(index)


def test_a_move_costs_its_cold_start_at_the_price_of_its_nodes(apart):
    (move,) = propose(apart, move_s=lambda member: 360).moves
    assert (move.price_s, move.price_usd) == (360, pytest.approx(0.5))


def test_a_move_that_does_not_pay_back_in_time_is_left(apart):
    """It saves 5 USD/h and costs 5 USD/h x 600 s."""
    slow = {"move_s": lambda member: 600}
    assert len(propose(apart, payback_s=601, **slow).moves) == 1
    assert propose(apart, payback_s=599, **slow).moves == ()


def test_the_policy_of_the_cluster_says_how_soon_a_move_must_pay_back(apart):
    slow = {"move_s": lambda member: 600}
    assert len(propose(with_policy(apart, payback_s=601), **slow).moves) == 1
    assert propose(with_policy(apart, payback_s=599), **slow).moves == ()


def test_who_has_moved_of_late_or_says_so_stays(apart, lab):
    both = {JobId("j-a"), JobId("j-b")}
    assert propose(apart, staying=both).moves == ()
    assert [move.name for move in propose(apart, staying={JobId("j-a")}).moves] == ["b"]
    groups = tuple(
        replace(g, members=tuple(replace(m, movable=False) for m in g.members))
        for g in apart.groups
    )
    assert propose(replace(apart, groups=groups)).moves == ()


def test_a_promise_that_a_move_would_break_stands_against_it(lab):
    first = lab.group(lab.member("a", 50, 50, slo=1.0), name="g-1")
    second = lab.group(lab.member("b", 60, 60, ("r1",), ("t1",)), name="g-2")
    assert propose(lab.state(first, second)).moves == ()


def test_the_largest_group_allowed_stands_against_it(apart):
    assert propose(with_policy(apart, max_members=1)).moves == ()


def test_a_drained_group_takes_nobody_and_can_be_left(lab, apart):
    drained = replace(apart, cluster=lab.cluster(2, 2, drained=("t0",)))
    assert [move.name for move in propose(drained).moves] == ["a"]


def test_a_group_is_split_where_its_parts_fill_others(lab):
    """Each of two others has room for one of the pair."""
    pair = lab.group(
        lab.member("a", 40, 40, ("r0",), ("t0",)),
        lab.member("b", 40, 40, ("r0",), ("t0",)),
        name="g-1",
    )
    second = lab.group(lab.member("c", 60, 40, ("r1",), ("t1",), slo=1.0), name="g-2")
    third = lab.group(lab.member("d", 60, 40, ("r2",), ("t2",), slo=1.0), name="g-3")
    state = lab.state(pair, second, third, cluster=lab.cluster(3, 3))
    found = propose(state)
    assert len(found.moves) == 2
    assert carried_out(state, found).usd_per_h() == 10


def test_two_jobs_that_change_places_leave_first_together(lab):
    """Neither group has room for a third, and no node is free."""
    near, far = ("r0",), ("r1",)
    first = lab.group(
        lab.member("a", 60, 30, near, slo=1.12), lab.member("b", 40, 40, near, slo=9), name="g-1"
    )
    second = lab.group(
        lab.member("c", 60, 30, far, ("t1",), slo=1.12),
        lab.member("d", 40, 40, far, ("t1",), slo=9),
        name="g-2",
    )
    index = Index.of(lab.state(first, second))
    plan = _Plan(index, payback_s=3600, move_s=lambda member: 1, staying=frozenset())
    wanted = (
        Target((JobId("j-a"), JobId("j-d")), GroupId("g-1"), 1, 1, 5.0),
        Target((JobId("j-c"), JobId("j-b")), GroupId("g-2"), 1, 1, 5.0),
    )
    plan.realise(wanted)
    assert [(move.name, move.leaves_first) for move in plan.moves] == [("d", True), ("b", True)]
    after = carried_out(
        index.state(),
        Rebalance(moves=tuple(plan.moves), usd_per_h_before=10, usd_per_h_after=10, payback_s=1),
    )
    assert [[m.name for m in g.members] for g in after.groups()] == [["a", "d"], ["c", "b"]]


def test_pools_without_a_free_node_are_rebalanced_too(lab, apart):
    """No node is free while the first job moves: it goes where nodes are held already."""
    assert len(propose(apart).moves) == 1


def test_the_time_of_a_move_is_the_cold_start_of_both_engines(lab):
    member = lab.member("a", 1, 1)
    profile = replace(
        member.profile,
        rollout=PhaseEstimate(worst_s=1, expected_s=1, cold_s=38.8),
        train=PhaseEstimate(worst_s=1, expected_s=1, cold_s=32.7),
    )
    assert cold_start_s(replace(member, profile=profile)) == pytest.approx(71.5)
    assert cold_start_s(lab.member("a", 1, 1)) == MOVE_S


def test_nothing_is_moved_where_nobody_can_gain(lab):
    assert propose(lab.state()).moves == ()
    assert propose(lab.state(lab.group(lab.member("a", 50, 50)))).moves == ()


def test_jobs_on_parts_of_nodes_are_packed_group_by_group(lab):
    """Two devices per node, one used: only whole groups are dissolved."""
    cluster = lab.cluster(2, 2, devices=2)
    first = lab.group(lab.member("a", 50, 50, ("r0/0",), ("t0/0",)), name="g-1")
    second = lab.group(lab.member("b", 50, 50, ("r1/0",), ("t1/0",)), name="g-2")
    state = lab.state(first, second, cluster=cluster)
    found = propose(state)
    assert len(found.moves) == 1
    assert carried_out(state, found).usd_per_h() == found.usd_per_h_after == 10


def drawn(lab, rng, count):
    groups = [
        lab.group(
            lab.member(
                f"m{n}",
                rng.randrange(20, 400),
                rng.randrange(20, 300),
                (f"r{n}",),
                (f"t{n}",),
                slo=rng.uniform(1, 2),
            ),
            name=f"g-{n}",
        )
        for n in range(count)
    ]
    return lab.state(*groups, cluster=lab.cluster(count, count))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_proposed_can_be_done_keeps_promises_and_saves_what_it_says(lab, seed):
    rng = random.Random(seed)
    state = drawn(lab, rng, rng.randrange(2, 9))
    found = propose(state, move_s=lambda member: 60)
    index = carried_out(state, found)
    assert index.usd_per_h() == pytest.approx(found.usd_per_h_after)
    assert found.usd_per_h_after <= found.usd_per_h_before
    assert promises_kept(index)
    assert propose(index, move_s=lambda member: 60).saves_usd_per_h <= found.saves_usd_per_h


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("most_jobs", "most_columns"), [(4, 4000), (40, 12)])
def test_many_jobs_are_moved_some_groups_at_a_time(lab, seed, most_jobs, most_columns, monkeypatch):
    """By too many jobs, or by too many groups that they could form."""
    state = drawn(lab, random.Random(seed), 8)
    best = propose(state).usd_per_h_after
    monkeypatch.setattr("rmux.place.target.MOST_COLUMNS", most_columns)
    index = Index.of(state)
    targets = Targets(index, most_jobs=most_jobs)
    for _ in range(12):
        found = propose(index, targets=targets)
        index = carried_out(index.state(), found)
        assert index.usd_per_h() == pytest.approx(found.usd_per_h_after)
        assert promises_kept(index)
    assert index.usd_per_h() < 40
    assert best <= index.usd_per_h() <= 1.3 * best


def test_what_is_known_of_jobs_is_kept_from_one_call_to_the_next(lab):
    rng = random.Random(3)
    state = drawn(lab, rng, 8)
    index = Index.of(state)
    kept = Targets(index, most_jobs=40)
    for gone in range(4):
        first, again = propose(index), propose(index, targets=kept)
        assert again == first
        index.remove(JobId(f"j-m{gone}"))


def test_a_proposal_leaves_the_state_as_it_was(apart):
    index = Index.of(apart)
    propose(index)
    assert isinstance(index.state(), ClusterState)
    assert index.usd_per_h() == 10
