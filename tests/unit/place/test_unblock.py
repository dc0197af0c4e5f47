"""What would let a waiting job in; every value that is named does, and a lesser one does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmux.cluster import Policy, Tenant
from rmux.group import ClusterState, PendingJob
from rmux.place import queue
from rmux.place.admit import admit
from rmux.place.least_slo import smallest_slo
from rmux.place.unblock import Step, steps


def waiting(lab, state: ClusterState, times=(10.0, 10.0), *, spec=None, **profile) -> ClusterState:
    return lab.waiting(state, (spec or lab.spec("new"), lab.profile(*times, **profile)))


def decide(state: ClusterState, job: PendingJob, **how):
    return admit(state, spec=job.spec, profile=job.profile, job_id=job.job.id, **how)


def told(state: ClusterState, *, after: timedelta = timedelta(0)) -> dict[str, Step]:
    job = state.pending[0]
    found = steps(state, job, decide(state, job), now=job.job.created_at + after)
    return {step.code: step for step in found}


def with_policy(state: ClusterState, **policy) -> ClusterState:
    return replace(state, cluster=replace(state.cluster, policy=Policy(**policy)))


@pytest.mark.parametrize(
    ("ours", "theirs", "margin"),
    [((10, 10), (20, 17), 0.0), ((10, 10), (20, 17), 0.1), ((7, 3), (31, 29), 0.0)],
)
def test_the_slo_that_is_named_is_the_least_that_is_admitted(lab, ours, theirs, margin):
    full = lab.cluster(1, 1)
    state = lab.state(lab.group(lab.member("x", *theirs, slo=3.0)), cluster=full)
    state = with_policy(waiting(lab, state, ours, spec=lab.spec("new", slo=1.1)), margin=margin)
    job = state.pending[0]
    assert not decide(state, job).admitted
    step = told(state)["slo"]
    slo = step.numbers["slo"]
    assert step.group_id == "g-1"
    assert f"--slo {slo:.2f} would fit group g-1" in step.message

    def admitted(value: float) -> bool:
        return decide(state, replace(job, spec=replace(job.spec, slo=value))).admitted

    assert admitted(slo)
    assert not admitted(slo * 0.99)


def test_of_several_groups_the_one_that_asks_least_counts(lab):
    groups = [
        lab.group(lab.member("x", 40, 40, ("r0",), ("t0",), slo=3.0), name="g-1"),
        lab.group(lab.member("y", 15, 15, ("r1",), ("t1",), slo=3.0), name="g-2"),
    ]
    state = waiting(lab, lab.state(*groups), spec=lab.spec("new", slo=1.0))
    assert told(state)["slo"].group_id == "g-2"
    assert told(state)["slo"].numbers["slo"] == 1.5


def test_no_slo_is_named_where_a_member_of_the_group_is_in_the_way(lab):
    state = lab.state(lab.group(lab.member("x", 40, 40, slo=1.0)), cluster=lab.cluster(1, 1))
    state = waiting(lab, state, (30, 41), spec=lab.spec("new", slo=1.0))
    job = state.pending[0]
    assert smallest_slo(state, job, decide(state, job)) is None
    message = told(state)["slo"].message
    assert "when x (j-x) has ended" in message
    assert "accepts 1.00x" in message


def test_missing_nodes_are_counted_and_that_many_are_enough(lab):
    lone = [
        lab.group(lab.member(f"x{n}", 9, 9, (f"r{n}",), (f"t{n}",), slo=1.0), name=f"g-{n}")
        for n in range(2)
    ]
    state = lab.state(*lone, cluster=lab.cluster(3, 2))
    state = waiting(lab, state, (50, 50), spec=lab.spec("new", slo=1.0, rollout=3))
    step = told(state)["capacity"]
    assert step.numbers == {"rollout_nodes": 2.0, "train_nodes": 1.0}
    for part in ("2 more cpu nodes in rollout pool rollout", "1 more cpu node in train pool train"):
        assert part in step.message

    def with_nodes(rollout: int, train: int) -> ClusterState:
        return replace(state, cluster=lab.cluster(3 + rollout, 2 + train))

    assert decide(with_nodes(2, 1), state.pending[0]).admitted
    assert not decide(with_nodes(1, 1), state.pending[0]).admitted
    assert not decide(with_nodes(2, 0), state.pending[0]).admitted


def test_the_drained_nodes_to_bring_back_are_named(lab):
    state = waiting(lab, lab.state(cluster=lab.cluster(2, 2, drained=("r0", "r1", "t1"))))
    assert told(state)["drained"].message == "rmux pool undrain r0 would make room"


def test_the_memory_that_is_short_is_named_with_its_node(lab):
    member = lab.member("x", 10, 10, rollout_resident_bytes=950)
    state = lab.state(lab.group(member), cluster=lab.cluster(1, 1))
    step = told(waiting(lab, state))["residency"]
    assert step.numbers["short_bytes"] == 50
    assert "50 B more host memory on r0" in step.message


def test_a_micro_batch_that_can_be_dealt_is_named(lab):
    wide = lab.group(lab.member("x", 10, 10, ("r0",), ("t0", "t1"), slo=3.0))
    state = lab.state(wide, cluster=lab.cluster(1, 2))
    state = waiting(lab, state, spec=lab.spec("new", slo=3.0))
    step = told(state)["data_parallel"]
    assert (
        step.message == "train.micro_batch = 16 could be dealt to the 2 train devices of group g-1"
    )
    job = state.pending[0]
    dealt = replace(job.spec, train=replace(job.spec.train, micro_batch=16))
    assert decide(state, replace(job, spec=dealt)).admitted


def test_hardware_that_there_is_not_is_named_beside_what_there_is(lab):
    step = told(waiting(lab, lab.state(), rollout_hardware="H20"))["hardware"]
    assert "profiled on H20 and needs a rollout pool" in step.message
    assert "profile it on cpu" in step.message


def test_a_link_that_would_do_is_named(lab):
    member = lab.member("x", 10, 10, sync_bytes=10, slo=3.0)
    state = lab.state(lab.group(member), cluster=lab.cluster(1, 1, link_bps=6.0))
    step = told(waiting(lab, state, sync_bytes=10, spec=lab.spec("new", slo=9.0)))["link"]
    assert step.numbers["load_bps"] > step.numbers["rate_bps"] == 6.0
    assert "link train - rollout" in step.message


def test_a_rule_that_would_do_is_named(lab):
    member = lab.member("x", 10, 10, slo=3.0)
    other = lab.member("y", 10, 10, slo=3.0)
    state = lab.state(lab.group(member, other), cluster=lab.cluster(1, 1))
    state = with_policy(waiting(lab, state, spec=lab.spec("new", slo=3.0)), rule="paper")
    assert 'rule "interval" would fit group g-1' in told(state)["saturated"].message
    tight = with_policy(waiting(lab, state, spec=lab.spec("new", slo=1.0)), rule="paper")
    assert "saturated" not in told(tight)


def test_the_limit_of_members_that_would_do_is_named(lab):
    state = lab.state(lab.group(lab.member("x", 10, 10)), cluster=lab.cluster(1, 1))
    state = with_policy(waiting(lab, state), max_members=1)
    step = told(state)["members"]
    assert "max_members = 2 would fit group g-1; it is 1" in step.message
    assert decide(with_policy(state, max_members=2), state.pending[0]).admitted


def test_a_stopped_group_is_to_be_brought_up(lab):
    group = lab.group(lab.member("x", 10, 10), desired="down")
    step = told(waiting(lab, lab.state(group, cluster=lab.cluster(1, 1))))["down"]
    assert step.message.startswith("rmux group up g-1")


def test_the_quota_that_would_do_is_named(lab):
    member = replace(lab.member("x", 10, 10, slo=1.0), tenant="math")
    spec = replace(lab.spec("new", slo=1.0), tenant="math")
    state = lab.state(lab.group(member))
    state = waiting(lab, state, (11, 11), spec=spec)

    def quota(usd_per_h: float) -> ClusterState:
        tenants = (Tenant(name="math", quota_usd_per_h=usd_per_h),)
        return replace(state, cluster=replace(state.cluster, tenants=tenants))

    message = told(quota(6.0))["quota"].message
    assert "quota of tenant math is 6.00 USD/h, charged 5.00 USD/h" in message
    assert "quota_usd_per_h = 10.00 would do" in message
    job = state.pending[0]
    assignment = decide(state, job).assignment
    assert queue.quota_refusal(quota(10.0), job, assignment) is None
    assert queue.quota_refusal(quota(9.9), job, assignment) is not None


def test_the_priority_that_goes_ahead_of_a_reserved_start_is_named(lab):
    lone = [
        lab.group(lab.member(f"x{n}", 9, 9, (f"r{n}",), (f"t{n}",), slo=1.0), name=f"g-{n}")
        for n in range(2)
    ]
    big = replace(lab.spec("big", slo=1.0, rollout=3, train=3), priority=2)
    state = lab.waiting(
        lab.state(*lone, cluster=lab.cluster(3, 3)),
        (big, lab.profile(11, 11)),
        (lab.spec("small", slo=1.0), lab.profile(11, 11)),
    )
    state = with_policy(state, ageing_s=600.0)
    _, small = state.pending
    now = small.job.created_at + timedelta(minutes=30)
    found = {s.code: s for s in steps(state, small, decide(state, small), now=now)}
    step = found["reserved"]
    assert "big (j-big) starts first, when groups g-0, g-1 have ended" in step.message
    enough = int(step.numbers["priority"])
    for priority, first in ((enough, "small"), (enough - 1, "big")):
        other = replace(small, spec=replace(small.spec, priority=priority))
        ordered = queue.order(replace(state, pending=(state.pending[0], other)), now=now)
        assert ordered[0].spec.name == first


def test_a_deadline_that_could_be_met_is_named(lab):
    spec = replace(lab.spec("new"), iterations=100, deadline_s=1000.0)
    step = told(waiting(lab, lab.state(), spec=spec))["deadline"]
    assert step.numbers["finish_s"] == 2000.0
    state = waiting(lab, lab.state(), spec=replace(spec, deadline_s=2000.0))
    assert "deadline" not in told(state)


def test_a_job_that_nothing_stands_against_needs_no_step(lab):
    assert told(waiting(lab, lab.state())) == {}
