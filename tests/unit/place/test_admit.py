"""Admission: which place, at what price, and why not elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmux.errors import NotFoundError, UserError
from rmux.group import ClusterState
from rmux.ids import NodeId
from rmux.job import TrainSpec
from rmux.place.candidates import Kind
from rmux.place.decision import Decision, Verdict
from rmux.place.index import Index
from rmux.place.period import Term, period
from rmux.place.residency import job_memory, memory_of
from rmux.place.settle import applied


def codes(decision: Decision) -> set[str]:
    return {one.reason.code for one in decision.candidates if one.verdict is Verdict.REFUSED}


def test_the_first_job_founds_a_group(lab):
    decision = lab.admit(lab.state(), (100, 100))
    assert decision.admitted
    assert decision.assignment.group_id is None
    assert decision.assignment.added_nodes == ("r0", "t0")
    assert decision.best.marginal_usd_per_h == 5.0
    assert decision.best.period.period_s == 200
    assert decision.revision == 7


def test_a_second_job_fits_the_first_ones_bubble_at_no_cost(lab):
    state = lab.state(lab.group(lab.member("a", 100, 100)))
    decision = lab.admit(state, (100, 100))
    assert decision.assignment.group_id == "g-1"
    assert decision.assignment.placement.rollout == lab.devices("r0")
    assert decision.assignment.added_nodes == ()
    assert decision.best.kind is Kind.PACK
    assert decision.best.marginal_usd_per_h == 0
    assert decision.best.period.period_s == 200


def test_a_skewed_job_gets_just_one_more_rollout_node(lab):
    state = lab.state(lab.group(lab.member("a", 150, 50, slo=1.1)))
    decision = lab.admit(state, (150, 50), spec=lab.spec("new", slo=1.1))
    assert decision.best.kind is Kind.SCALE
    assert decision.assignment.added_nodes == ("r1",)
    assert decision.best.marginal_usd_per_h == 1.0
    assert decision.assignment.placement.train == lab.devices("t0")
    assert decision.best.period.period_s == 200


def test_the_feasible_places_that_lost_say_what_the_chosen_one_saves(lab):
    state = lab.state(lab.group(lab.member("a", 100, 100)))
    decision = lab.admit(state, (100, 100))
    others = {one.kind: one for one in decision.candidates if one.verdict is Verdict.FEASIBLE}
    assert others[Kind.SCALE].reason.code == "cost"
    assert others[Kind.NEW].reason.message == "costs 5.00 USD/h more"


def test_a_member_with_a_tight_slo_keeps_others_out_and_is_named(lab):
    cluster = lab.cluster(rollout=1, train=1)
    state = lab.state(lab.group(lab.member("a", 100, 60, slo=1.1)), cluster=cluster)
    decision = lab.admit(state, (100, 60))
    assert not decision.admitted
    assert not decision.never_fits
    assert codes(decision) == {"slo", "capacity"}
    refused = decision.candidates[0]
    assert (refused.cap_s, refused.cap_job) == (pytest.approx(176), "a")
    assert (refused.period.period_s, refused.period.binding) == (200, Term.ROLLOUT_LOAD)
    assert decision.reason.code == "slo"
    assert "a 1.25x where 1.10x is allowed" in decision.reason.message
    assert "rollout load of r0/0" in decision.reason.message
    assert "new group: needs 1 device;" in decision.reason.message


def test_the_newcomers_own_slo_counts_too(lab):
    cluster = lab.cluster(rollout=1, train=1)
    state = lab.state(lab.group(lab.member("a", 100, 100)), cluster=cluster)
    decision = lab.admit(state, (40, 40), spec=lab.spec("new", slo=1.5))
    assert decision.candidates[0].cap_job == "new"
    assert "new 2.50x where 1.50x is allowed" in decision.reason.message


def test_loads_beyond_the_cycle_are_fine_while_every_slo_has_room(lab):
    state = lab.state(lab.group(lab.member("a", 60, 60), lab.member("b", 60, 60)))
    assert lab.admit(state, (60, 60)).best.period.period_s == 180
    assert lab.admit(state, (60, 60)).assignment.group_id == "g-1"


def test_the_paper_rule_does_not_offer_a_full_group(lab):
    state = lab.state(lab.group(lab.member("a", 60, 60), lab.member("b", 60, 60)))
    decision = lab.admit(state, (60, 60), rule="paper")
    assert decision.candidates[0].reason.code == "saturated"
    assert decision.assignment.group_id is None


def test_a_group_is_saturated_when_load_equals_cycle_and_not_below(lab):
    below = lab.state(lab.group(lab.member("a", 60, 60), lab.member("b", 59, 59)))
    assert "saturated" not in codes(lab.admit(below, (10, 10), rule="paper"))


def test_the_paper_rule_takes_the_first_of_equal_cost(lab):
    groups = [
        lab.group(lab.member("a", 100, 100, ("r0",), ("t0",)), name="g-1"),
        lab.group(lab.member("b", 50, 50, ("r1",), ("t1",)), name="g-2"),
    ]
    paper = lab.admit(lab.state(*groups), (50, 50), rule="paper")
    assert paper.assignment.group_id == "g-1"
    interval = lab.admit(lab.state(*groups), (50, 50))
    assert interval.assignment.group_id == "g-2"


def test_switch_time_makes_an_slo_of_one_inadmissible_together(lab):
    switching = {"rollout": replace(lab.profile(95, 95).rollout, switch_s=5.0)}
    cluster = lab.cluster(rollout=1, train=1)
    state = lab.state(lab.group(lab.member("a", 100, 100, slo=1.0)), cluster=cluster)
    decision = lab.admit(state, (0, 0), profile=lab.profile(96, 95, **switching))
    assert decision.candidates[0].period.period_s == pytest.approx(200)
    assert decision.admitted
    slower = {"rollout": replace(lab.profile(100, 95).rollout, switch_s=5.1)}
    decision = lab.admit(state, (0, 0), profile=lab.profile(100, 95, **slower))
    assert not decision.admitted


def test_a_margin_leaves_room_and_does_not_weigh_on_a_job_alone(lab):
    state = lab.state(lab.group(lab.member("a", 60, 60, slo=1.0)))
    same = lab.spec("new", slo=1.0)
    assert lab.admit(state, (60, 60), spec=same).assignment.group_id == "g-1"
    with_margin = lab.admit(state, (60, 60), spec=same, margin=0.05)
    assert with_margin.assignment.group_id is None
    assert "margin of 0.05" in with_margin.candidates[0].reason.message


def test_memory_refuses_before_anything_is_reserved_and_says_how_much_is_short(lab):
    cluster = lab.cluster(rollout=1, train=1, memory=250)
    first = lab.member("a", 100, 100, rollout_resident_bytes=180)
    decision = lab.admit(lab.state(lab.group(first), cluster=cluster), (100, 100))
    assert decision.reason.code == "residency"
    assert "short by 30 B of host memory on r0 (limit 250 B)" in decision.reason.message
    assert "a 180 B parked, 0 B for the largest switch, 100 B asked, 70 B left" in (
        decision.reason.message
    )
    numbers = decision.candidates[0].bounds[0].numbers
    assert numbers["held_bytes"] + numbers["left_bytes"] + numbers["switch_bytes"] == 250
    assert (numbers["asked_bytes"], numbers["left_bytes"]) == (100, 70)
    assert not decision.never_fits


def test_the_bytes_of_a_job_on_a_node_are_what_it_parks_there_and_its_own_switch(lab):
    member = lab.member(
        "a", 1, 1, rollout_resident_bytes=180, train_resident_bytes=70, switch_peak_bytes=9
    )
    roll, train, other = (job_memory(member, NodeId(node)) for node in ("r0", "t0", "r1"))
    assert (roll.resident_bytes, roll.most_bytes) == (180, 189)
    assert (train.resident_bytes, train.most_bytes) == (70, 79)
    assert other.most_bytes == 0


def test_the_peak_of_a_switch_counts_and_only_the_largest_of_a_device(lab):
    cluster = lab.cluster(rollout=1, train=1, memory=250)
    first = lab.member("a", 100, 100, switch_peak_bytes=50)
    state = lab.state(lab.group(first), cluster=cluster)
    same = lab.profile(100, 100, switch_peak_bytes=50)
    assert lab.admit(state, (0, 0), profile=same).admitted
    larger = lab.profile(100, 100, switch_peak_bytes=51)
    assert lab.admit(state, (0, 0), profile=larger).reason.code == "residency"


def wide(lab, *, train, micro_batch=8, mini_batch=16):
    batches = TrainSpec(devices=train, micro_batch=micro_batch, mini_batch=mini_batch)
    return replace(lab.spec("new", slo=3.0), train=batches)


def test_a_job_trains_on_as_many_devices_as_the_group_and_slower_on_fewer(lab):
    cluster = lab.cluster(rollout=1, train=1, devices=2)
    group = lab.group(lab.member("a", 50, 60, ("r0/0", "r0/1"), ("t0/0",)))
    state = lab.state(group, cluster=cluster)
    decision = lab.admit(state, (20, 50), spec=wide(lab, train=2))
    assert decision.assignment.placement.train == lab.devices("t0/0")
    # 60 s, and 50 s on two devices are 100 s on one.
    assert decision.best.period.period_s == 160
    assert decision.best.period.binding is Term.TRAIN_LOAD
    # It is promised twice what it takes alone on the two devices it asked for.
    assert {one.name: one.slowdown for one in decision.best.slowdowns}["new"] == 160 / 70
    member = applied(state, decision.assignment, wide(lab, train=2), lab.profile(20, 50)).groups[0]
    assert member.members[1].profile.train.planned_s == 100
    assert member.members[1].solo_s == 70


def test_more_train_devices_than_asked_for_are_not_taken_to_be_faster(lab):
    cluster = lab.cluster(rollout=1, train=1, devices=2)
    group = lab.group(lab.member("a", 100, 60, ("r0/0",), ("t0/0", "t0/1")))
    decision = lab.admit(lab.state(group, cluster=cluster), (20, 50), spec=wide(lab, train=1))
    assert decision.assignment.placement.train == lab.devices("t0/0", "t0/1")
    assert decision.best.period.period_s == 160
    held = {plan.node: plan.resident_bytes for plan in decision.best.memory}
    # Two ranks on the node where it was measured with one.
    assert held["t0"] == 100 + 200


def test_batches_that_cannot_be_dealt_to_the_groups_ranks_are_refused_with_the_arithmetic(lab):
    cluster = lab.cluster(rollout=1, train=1, devices=2)
    group = lab.group(lab.member("a", 100, 100, ("r0/0",), ("t0/0", "t0/1")))
    odd = wide(lab, train=1, micro_batch=8, mini_batch=24)
    decision = lab.admit(lab.state(group, cluster=cluster), (100, 100), spec=odd)
    assert "data_parallel" in codes(decision)
    refusal = decision.candidates[0].reason.message
    assert "trains on 2 devices, the job asks for 1" in refusal
    assert "mini_batch 24 is no multiple of micro_batch 8 x 2" in refusal
    assert decision.reason.message.endswith("; groups refused: data_parallel 1")


def test_the_wrong_hardware_is_refused(lab):
    state = lab.state(lab.group(lab.member("a", 100, 100)))
    gpu = lab.profile(100, 100, train_hardware="H800")
    decision = lab.admit(state, (0, 0), profile=gpu)
    assert codes(decision) == {"hardware"}
    assert decision.never_fits


def test_nothing_new_comes_to_drained_nodes(lab):
    group = lab.group(lab.member("a", 100, 100))
    cluster = lab.cluster(rollout=1, train=1, drained=("t0",))
    decision = lab.admit(lab.state(group, cluster=cluster), (100, 100))
    assert decision.candidates[0].reason.code == "drained"
    free = lab.cluster(rollout=2, train=2, drained=("t1", "r1"))
    decision = lab.admit(lab.state(cluster=free), (100, 100), spec=lab.spec("new", rollout=2))
    assert decision.reason.code == "drained"
    assert not decision.never_fits


def test_a_drained_rollout_node_of_a_group_is_left_out(lab):
    group = lab.group(lab.member("a", 100, 100, ("r0",)))
    cluster = lab.cluster(rollout=2, train=1, drained=("r0",))
    decision = lab.admit(lab.state(group, cluster=cluster), (100, 100))
    assert decision.assignment.placement.rollout == lab.devices("r1")


def test_a_stopped_group_takes_nobody(lab):
    group = lab.group(lab.member("a", 100, 100), desired="down")
    decision = lab.admit(lab.state(group), (100, 100))
    assert decision.candidates[0].reason.code == "down"
    assert decision.assignment.group_id is None


def test_a_job_larger_than_the_cluster_never_fits(lab):
    decision = lab.admit(lab.state(), (100, 100), spec=lab.spec("new", rollout=3))
    assert decision.never_fits
    assert decision.reason.code == "capacity"
    assert "needs 3 devices; rollout pool rollout has 2 of 2 free" in decision.reason.message


def test_a_job_too_big_for_any_node_never_fits_however_full_the_cluster_is(lab):
    state = lab.state(lab.group(lab.member("a", 1, 1)))
    huge = lab.profile(1, 1, train_resident_bytes=5000)
    decision = lab.admit(state, (0, 0), profile=huge)
    assert decision.never_fits
    assert decision.reason.code == "residency"


def test_a_job_that_only_waits_for_others_may_fit_later(lab):
    cluster = lab.cluster(rollout=1, train=1)
    state = lab.state(lab.group(lab.member("a", 100, 100, slo=1.0)), cluster=cluster)
    decision = lab.admit(state, (300, 100), spec=lab.spec("new", slo=1.0))
    assert not decision.admitted
    assert not decision.never_fits


def test_the_syncs_of_all_groups_share_the_link(lab):
    cluster = lab.cluster(link_bps=100.0)
    first = lab.group(lab.member("a", 10, 10, slo=9.0, sync_bytes=1000, sync_s=80.0))
    state = lab.state(first, cluster=cluster)
    # 1000 B per 100 s are 80 of the 100 bit/s; 300 B more per 44 s make 134.5.
    heavy = lab.profile(10, 10, sync_bytes=300, sync_s=24.0)
    decision = lab.admit(state, (0, 0), profile=heavy, spec=lab.spec("new", slo=9.0))
    alone = decision.candidates[-1]
    assert (alone.kind, alone.reason.code) == (Kind.NEW, "link")
    assert alone.link.load_bps == pytest.approx(80 + 2400 / 44)
    assert not decision.never_fits
    light = lab.profile(10, 10, sync_bytes=50, sync_s=4.0)
    assert lab.admit(state, (0, 0), profile=light, spec=lab.spec("new", slo=9.0)).admitted


def test_a_second_device_of_the_same_node_is_free_to_use(lab):
    cluster = lab.cluster(rollout=1, train=1, devices=2)
    group = lab.group(lab.member("a", 100, 50, ("r0/0",), ("t0/0",), slo=1.05))
    decision = lab.admit(lab.state(group, cluster=cluster), (100, 50))
    assert decision.assignment.placement.rollout == lab.devices("r0/1")
    assert decision.best.marginal_usd_per_h == 0


def test_a_new_group_is_charged_whole_nodes(lab):
    cluster = lab.cluster(devices=8)
    decision = lab.admit(lab.state(cluster=cluster), (1, 1), spec=lab.spec("new", rollout=4))
    assert decision.best.marginal_usd_per_h == 8 * 1.0 + 8 * 4.0


def test_overlapping_sets_are_taken_only_when_nothing_else_is_as_cheap(lab):
    group = lab.group(
        lab.member("a", 20, 20, ("r0",)), lab.member("b", 19, 18, ("r1",)), name="g-1"
    )
    cluster = lab.cluster(rollout=2, train=1)
    wide = lab.spec("new", rollout=2, slo=3.0)
    decision = lab.admit(lab.state(group, cluster=cluster), (19, 1), spec=wide)
    # The L-shape: 48 s where cycle and loads say 40.
    assert decision.best.overlapping
    assert decision.best.period.period_s == pytest.approx(48)


def test_with_free_hardware_jobs_still_share_before_they_spread(lab):
    free = type(lab)(rollout_usd=0.0, train_usd=0.0)
    state = free.state(free.group(free.member("a", 100, 100)))
    assert free.admit(state, (100, 100)).assignment.group_id == "g-1"


def test_only_the_group_asked_for_is_looked_at(lab):
    state = lab.state(lab.group(lab.member("a", 100, 100, slo=1.0)))
    decision = lab.admit(state, (200, 200), group="g-1")
    assert [one.group_id for one in decision.candidates] == ["g-1"]
    assert not decision.admitted
    with pytest.raises(NotFoundError):
        lab.admit(state, (1, 1), group="g-9")


def test_an_unknown_rule_or_a_negative_margin_is_refused(lab):
    with pytest.raises(UserError, match="no rule 'random'"):
        lab.admit(lab.state(), (1, 1), rule="random")
    with pytest.raises(UserError, match="margin is -1"):
        lab.admit(lab.state(), (1, 1), margin=-1)


def test_an_empty_cluster_says_that_there_are_no_pools(lab):
    state = ClusterState(revision=1, cluster=lab.cluster(rollout=0, train=0), groups=())
    decision = lab.admit(state, (1, 1))
    assert decision.never_fits
    assert decision.reason.code == "capacity"


arrivals = st.lists(
    st.tuples(
        st.integers(5, 60),
        st.integers(5, 60),
        st.sampled_from([1.0, 1.2, 1.5, 2.0, 3.0]),
        st.integers(1, 3),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=8,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(jobs=arrivals, rule=st.sampled_from(["interval", "paper"]))
def test_whatever_is_admitted_keeps_every_promise(lab, jobs, rule):
    state = lab.state(cluster=lab.cluster(rollout=4, train=2, memory=350))
    for index, (rollout_s, train_s, slo, width, sync_s) in enumerate(jobs):
        spec = lab.spec(f"n{index}", slo=slo, rollout=width)
        profile = lab.profile(rollout_s, train_s, sync_s=float(sync_s))
        decision = lab.admit(state, (0, 0), spec=spec, profile=profile, rule=rule)
        assert not decision.never_fits
        if decision.admitted:
            renamed = replace(
                decision.assignment,
                job_id=f"j-{index}",
                turns=tuple(
                    f"j-{index}" if job == "j-new" else job for job in decision.assignment.turns
                ),
            )
            book = Index.of(state)
            book.apply(renamed, spec=spec, profile=profile)
            state = book.state()
    held = [node for group in state.groups for node in group.nodes]
    assert len(held) == len(set(held))
    for group in state.groups:
        period_s = period(group.members, order=group.round).period_s
        for member in group.members:
            assert period_s <= member.slo * member.profile.solo_s * (1 + 1e-6)
            assert set(member.placement.rollout_nodes) <= set(group.nodes)
            assert member.placement.train == group.members[0].placement.train
        plans = memory_of(group.members, state.cluster, nodes=group.nodes)
        assert all(plan.fits for plan in plans)
