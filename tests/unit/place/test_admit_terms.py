"""Admission beyond one plain pool: elastic pools, policy, rounds of their own, bounds by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmux.cluster import Policy, PoolKind
from rmux.ids import JobId, PoolName
from rmux.place.candidates import Kind
from rmux.place.decision import Verdict
from rmux.place.index import Index
from rmux.place.period import period


def elastic(cluster, *, rollout=0, train=0):
    most = {PoolKind.ROLLOUT: rollout, PoolKind.TRAIN: train}
    return replace(
        cluster, pools=tuple(replace(pool, max_nodes=most[pool.kind]) for pool in cluster.pools)
    )


def under(lab, cluster=None, **policy):
    return lab.state(cluster=replace(cluster or lab.cluster(), policy=Policy(**policy)))


def bounds(candidate):
    return {bound.code: bound for bound in candidate.bounds}


def test_an_elastic_pool_gains_just_the_nodes_that_are_missing(lab):
    cluster = elastic(lab.cluster(rollout=1, train=1), rollout=4)
    decision = lab.admit(lab.state(cluster=cluster), (10, 10), spec=lab.spec("new", rollout=3))
    assert decision.assignment.placement.rollout == lab.devices("r0", "rollout-2", "rollout-3")
    assert [node.id for node in decision.assignment.new_nodes] == ["rollout-2", "rollout-3"]
    made = decision.assignment.new_nodes[0]
    assert made == replace(cluster.pools[0].nodes[-1], id="rollout-2", host="rollout-2")
    assert decision.best.marginal_usd_per_h == 3 * 1.0 + 4.0


def test_an_elastic_pool_grows_to_its_limit_and_no_further(lab):
    cluster = elastic(lab.cluster(rollout=1, train=1), rollout=2)
    decision = lab.admit(lab.state(cluster=cluster), (10, 10), spec=lab.spec("new", rollout=3))
    assert decision.never_fits
    assert "has 1 of 1 free and may grow to 2 nodes" in decision.reason.message


def test_a_gained_node_that_nobody_holds_is_used_before_another_is_made(lab):
    cluster = elastic(lab.cluster(rollout=1, train=2), rollout=3, train=2)
    index = Index.of(lab.state(cluster=cluster))
    for name in ("a", "b"):
        spec = lab.spec(name, slo=1.0, rollout=1 if name == "a" else 2)
        asked = {"spec": spec, "profile": lab.profile(10, 10), "job_id": JobId(name)}
        decision = index.decide(**asked)
        index.apply(decision.assignment, spec=spec, profile=asked["profile"])
        if name == "a":
            assert decision.assignment.new_nodes == ()
    index.remove(JobId("b"))
    before = index.usd_per_h()
    spec = lab.spec("c", slo=1.0)
    decision = index.decide(spec=spec, profile=lab.profile(30, 30), job_id=JobId("c"))
    assert decision.assignment.added_nodes[0] == "rollout-2"
    assert decision.assignment.new_nodes == ()
    assert before == 5.0
    assert len(index.state().cluster.pool("rollout").nodes) == 3


def test_a_name_that_another_node_has_is_not_given_again(lab):
    cluster = elastic(lab.cluster(rollout=1, train=1), rollout=3)
    taken = replace(cluster.pools[1].nodes[0], id="rollout-2")
    cluster = replace(cluster, pools=(cluster.pools[0], replace(cluster.pools[1], nodes=(taken,))))
    decision = lab.admit(lab.state(cluster=cluster), (10, 10), spec=lab.spec("new", rollout=2))
    assert [node.id for node in decision.assignment.new_nodes] == ["rollout-3"]


def test_every_pool_of_the_hardware_that_was_profiled_is_considered(lab):
    cluster = lab.cluster(rollout=1, train=1)
    rollout, train = cluster.pools
    second = PoolName("spare")
    nodes = tuple(lab.node(f"r-spare{i}") for i in range(2))
    spare = replace(rollout, name=second, nodes=tuple(replace(node, pool=second) for node in nodes))
    both = replace(cluster, pools=(rollout, spare, train))
    decision = lab.admit(lab.state(cluster=both), (10, 10), spec=lab.spec("new", rollout=2))
    assert decision.assignment.placement.rollout == lab.devices("r-spare0", "r-spare1")


def test_the_policy_of_the_cluster_decides_where_nobody_says_otherwise(lab):
    full = lab.group(lab.member("a", 60, 60), lab.member("b", 60, 60))
    for rule, group in (("interval", "g-1"), ("paper", None)):
        state = replace(under(lab, rule=rule, margin=0.0), groups=(full,))
        assert lab.admit(state, (60, 60)).assignment.group_id == group
        assert lab.admit(state, (60, 60)).rule == rule
        assert lab.admit(state, (60, 60), rule="interval").assignment.group_id == "g-1"
    tight = lab.group(lab.member("a", 60, 60, slo=1.0))
    state = replace(under(lab, margin=0.05), groups=(tight,))
    same = lab.spec("new", slo=1.0)
    assert lab.admit(state, (60, 60), spec=same).assignment.group_id is None
    assert lab.admit(state, (60, 60), spec=same, margin=0.0).assignment.group_id == "g-1"


def test_a_group_has_no_more_members_than_the_policy_lets_in(lab):
    group = lab.group(lab.member("a", 100, 100))
    state = replace(under(lab, max_members=1), groups=(group,))
    decision = lab.admit(state, (50, 50))
    assert decision.candidates[0].reason.code == "members"
    assert "the group has 1 jobs of at most 1" in decision.candidates[0].reason.message
    assert decision.assignment.group_id is None
    assert lab.admit(replace(under(lab, max_members=2), groups=(group,)), (50, 50)).assignment


def test_what_the_margin_costs_is_told(lab):
    state = lab.state(lab.group(lab.member("a", 60, 60, slo=1.0)))
    same = lab.spec("new", slo=1.0)
    assert lab.admit(state, (60, 60), spec=same, margin=0.05).margin_usd_per_h == 5.0
    assert lab.admit(state, (60, 60), spec=same).margin_usd_per_h == 0.0
    # Here the job gets a group of its own in any case.
    apart = lab.admit(state, (90, 90), spec=same, margin=0.05)
    assert (apart.best.marginal_usd_per_h, apart.margin_usd_per_h) == (5.0, 0.0)


def test_load_equal_to_the_cycle_saturates_a_group_of_the_paper(lab):
    equal = lab.state(lab.group(lab.member("a", 60, 60), lab.member("b", 60, 60)))
    below = lab.state(lab.group(lab.member("a", 60, 60), lab.member("b", 59, 59)))
    for state, saturated in ((equal, True), (below, False)):
        first = lab.admit(state, (1, 1), rule="paper").candidates[0]
        assert (first.reason.code == "saturated") is saturated
    refused = lab.admit(equal, (1, 1), rule="paper").candidates[0]
    assert bounds(refused)["saturated"].numbers == {"load_s": 120.0, "cycle_s": 120.0}


def test_the_paper_refuses_memory_that_would_be_used_to_the_last_byte(lab):
    cluster = lab.cluster(rollout=1, train=1, memory=200)
    state = lab.state(lab.group(lab.member("a", 100, 100)), cluster=cluster)
    assert lab.admit(state, (50, 50)).admitted
    decision = lab.admit(state, (50, 50), rule="paper")
    assert decision.candidates[0].reason.code == "residency"
    assert "nothing left of host memory on r0" in decision.candidates[0].reason.message


def test_a_job_of_phases_without_length_is_refused_and_told_so(lab):
    decision = lab.admit(lab.state(), (0, 0))
    assert (decision.admitted, decision.never_fits) == (False, True)
    assert decision.reason.code == "phases"
    assert "its phases take 0 s" in decision.reason.message
    assert lab.admit(lab.state(), (0, 10)).admitted


def test_each_candidate_names_what_binds_it_and_whose_cap_is_nearest(lab):
    group = lab.group(lab.member("a", 100, 60, slo=1.1))
    state = lab.state(group, cluster=lab.cluster(rollout=2, train=1))
    pack, scale, alone = lab.admit(state, (100, 60)).candidates
    assert bounds(pack)["rollout_load"].subject == "r0/0"
    assert bounds(pack)["rollout_load"].numbers["binding_s"] == 200
    assert bounds(pack)["slo"].subject == "a"
    assert bounds(pack)["slo"].numbers["cap_s"] == pytest.approx(176)
    assert (scale.kind, scale.verdict) == (Kind.SCALE, Verdict.CHOSEN)
    assert bounds(scale)["cycle"].subject == "a"
    assert bounds(scale)["cap"].numbers["cap_s"] == pytest.approx(176)
    assert alone.reason.code == "capacity"
    heavy = lab.admit(state, (20, 130), spec=lab.spec("new", slo=3.0)).candidates[0]
    assert bounds(heavy)["train_load"].subject == "t0/0"


def test_every_bound_that_does_not_hold_is_told_not_only_the_first(lab):
    cluster = lab.cluster(rollout=1, train=1, memory=150)
    group = lab.group(lab.member("a", 100, 60, slo=1.1))
    refused = lab.admit(lab.state(group, cluster=cluster), (100, 20)).candidates[0]
    told = [(bound.code, bound.subject) for bound in refused.bounds]
    assert told == [
        ("residency", "r0"),
        ("residency", "t0"),
        ("slo", "a"),
        ("rollout_load", "r0/0"),
        ("cap", "a"),
    ]


def test_a_short_job_may_run_several_times_in_the_round_of_a_long_one(lab):
    state = lab.state(
        lab.group(lab.member("a", 100, 20, slo=1.0)), cluster=lab.cluster(rollout=2, train=1)
    )
    short = lab.spec("new", slo=1.0)
    once = lab.admit(state, (40, 20), spec=short)
    assert not once.admitted
    twice = lab.admit(state, (40, 20), spec=replace(short, max_repeats=2))
    assert twice.assignment.added_nodes == ("r1",)
    assert sorted(twice.assignment.turns) == ["j-a", "j-new", "j-new"]
    assert {one.name: one.slowdown for one in twice.best.slowdowns} == {"a": 1.0, "new": 1.0}


def test_the_best_order_of_a_group_becomes_its_round(lab):
    members = [
        lab.member("a", 18, 7, ("r0", "r1"), slo=3.0),
        lab.member("b", 18, 6, ("r2",), slo=3.0),
        lab.member("c", 7, 11, ("r3",), slo=3.0),
    ]
    state = lab.state(lab.group(*members), cluster=lab.cluster(rollout=4, train=1))
    index = Index.of(state)
    spec, profile = lab.spec("new", slo=4.0, rollout=3), lab.profile(9, 9)
    decision = index.decide(spec=spec, profile=profile, job_id=JobId("j-new"))
    index.apply(decision.assignment, spec=spec, profile=profile)
    group = index.group("g-1")
    best_s = period(group.members).period_s
    assert decision.best.overlapping
    assert period(group.members, order=group.round).period_s == pytest.approx(best_s)
    assert decision.best.period.period_s == pytest.approx(best_s)


def test_a_one_step_off_policy_job_is_promised_by_its_own_period(lab):
    stale = replace(lab.spec("new", slo=1.0), max_staleness=1)
    decision = lab.admit(lab.state(), (60, 40), spec=stale)
    assert decision.best.period.period_s == 60
    assert decision.best.slowdowns[0].slowdown == 1.0
