"""In what order waiting jobs are tried, and what holds one back that would fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmux.cluster import Policy, Tenant
from rmux.group import ClusterState, PendingJob
from rmux.ids import JobId
from rmux.place import charge, queue
from rmux.place.admit import admit
from rmux.place.settle import applied

HOUR = timedelta(hours=1)


def sharing(state: ClusterState, *tenants: Tenant, **policy) -> ClusterState:
    cluster = replace(state.cluster, tenants=tenants, policy=Policy(**policy))
    return replace(state, cluster=cluster)


def wanting(lab, state: ClusterState, *specs) -> ClusterState:
    """Each spec is a job of (10, 10) s, one submitted a minute after the other."""
    return lab.waiting(state, *((spec, lab.profile(10, 10)) for spec in specs))


def names(ordered: tuple[PendingJob, ...]) -> list[str]:
    return [one.spec.name for one in ordered]


def now(state: ClusterState):
    return max(one.job.created_at for one in state.pending) + HOUR


def decide(state: ClusterState, one: PendingJob):
    return admit(state, spec=one.spec, profile=one.profile, job_id=one.job.id)


def test_by_default_the_oldest_goes_first(lab):
    state = wanting(lab, lab.state(), *(lab.spec(name) for name in "cab"))
    assert names(queue.order(state, now=now(state))) == ["c", "a", "b"]


def test_jobs_of_one_moment_go_by_their_ids(lab):
    state = wanting(lab, lab.state(), lab.spec("b"), lab.spec("a"))
    moment = now(state)
    same = tuple(replace(one, job=replace(one.job, created_at=moment)) for one in state.pending)
    assert names(queue.order(replace(state, pending=same), now=moment)) == ["a", "b"]


def test_the_higher_priority_goes_first(lab):
    state = wanting(
        lab, lab.state(), lab.spec("a"), replace(lab.spec("b"), priority=1), lab.spec("c")
    )
    assert names(queue.order(state, now=now(state))) == ["b", "a", "c"]


def test_waiting_counts_as_priority_only_with_ageing(lab):
    state = wanting(lab, lab.state(), lab.spec("old"), replace(lab.spec("new"), priority=2))
    old, new = state.pending
    old = replace(old, job=replace(old.job, created_at=new.job.created_at - 3 * HOUR))
    state = replace(state, pending=(old, new))
    moment = new.job.created_at
    assert names(queue.order(state, now=moment)) == ["new", "old"]
    aged = sharing(state, ageing_s=3600.0)
    assert names(queue.order(aged, now=moment)) == ["old", "new"]
    assert queue.effective_priority(old, ageing_s=3600.0, now=moment) == 3


def test_a_stream_of_high_priorities_holds_a_low_one_only_so_long(lab):
    """One job is taken per step; a new one of priority 5 comes at each."""
    state = sharing(lab.state(), ageing_s=600.0)
    low = wanting(lab, state, lab.spec("low")).pending[0]
    start, pending, taken = low.job.created_at, [low], []
    for step in range(200):
        moment = start + timedelta(minutes=step)
        urgent = replace(lab.spec(f"u{step:03d}"), priority=5)
        fresh = wanting(lab, state, urgent).pending[0]
        pending.append(replace(fresh, job=replace(fresh.job, created_at=moment)))
        first = queue.order(replace(state, pending=tuple(pending)), now=moment)[0]
        taken.append(first.spec.name)
        pending.remove(first)
        if first is low:
            break
    # It is overtaken while the newcomer's lead of 5 steps lasts, and never after 6 steps.
    assert 50 <= taken.index("low") <= 60
    without = [u for u in taken if u != "low"]
    assert without == sorted(without)


def test_without_ageing_that_stream_holds_it_for_ever(lab):
    state = wanting(lab, lab.state(), lab.spec("low"), replace(lab.spec("new"), priority=5))
    later = state.pending[0].job.created_at + timedelta(days=400)
    assert names(queue.order(state, now=later)) == ["new", "low"]


def test_tenants_with_more_weight_are_dealt_more_places(lab):
    specs = [replace(lab.spec(f"m{n}"), tenant="math") for n in range(4)]
    specs += [replace(lab.spec(f"c{n}"), tenant="code") for n in range(4)]
    state = wanting(lab, lab.state(), *specs)
    assert names(queue.order(state, now=now(state)))[:4] == ["m0", "m1", "m2", "m3"]
    shared = sharing(state, Tenant(name="math", weight=1.0), Tenant(name="code", weight=3.0))
    dealt = names(queue.order(shared, now=now(state)))
    assert dealt == ["m0", "c0", "c1", "c2", "m1", "c3", "m2", "m3"]


def test_the_tenant_that_is_charged_least_goes_first(lab):
    member = replace(lab.member("x", 10, 10), tenant="math")
    specs = [replace(lab.spec("m"), tenant="math"), replace(lab.spec("c"), tenant="code")]
    state = wanting(lab, lab.state(lab.group(member)), *specs)
    tenants = (Tenant(name="math"), Tenant(name="code"))
    assert names(queue.order(sharing(state, *tenants), now=now(state))) == ["c", "m"]


def test_priority_counts_before_fair_share(lab):
    member = replace(lab.member("x", 10, 10), tenant="math")
    urgent = replace(lab.spec("m"), tenant="math", priority=1)
    state = wanting(lab, lab.state(lab.group(member)), lab.spec("c"), urgent)
    shared = sharing(state, Tenant(name="math"))
    assert names(queue.order(shared, now=now(state))) == ["m", "c"]


def quota_state(lab, quota: float, *, charged_to: str = "math"):
    """One group of 5 $/h with a job of `charged_to`; a job of math that fits into it waits."""
    member = replace(lab.member("x", 10, 10), tenant=charged_to)
    spec = replace(lab.spec("new", slo=3.0), tenant="math")
    state = wanting(lab, lab.state(lab.group(member)), spec)
    return sharing(state, Tenant(name="math", quota_usd_per_h=quota))


def test_a_job_that_joins_for_nothing_is_charged_its_share(lab):
    state = quota_state(lab, 1.0, charged_to="code")
    job = state.pending[0]
    decision = decide(state, job)
    assert decision.best.marginal_usd_per_h == 0
    added = queue.added_usd_per_h(state, job, decision.assignment)
    assert added == {"math": 2.5, "code": -2.5}
    reason = queue.quota_refusal(state, job, decision.assignment)
    assert reason.code == "quota"
    for part in ("math", "1.00 USD/h", "charged 0.00 USD/h", "add 2.50 USD/h"):
        assert part in reason.message


def test_a_share_that_meets_the_quota_exactly_is_within_it(lab):
    state = quota_state(lab, 2.5, charged_to="code")
    job = state.pending[0]
    assert queue.quota_refusal(state, job, decide(state, job).assignment) is None


def test_sharing_with_a_job_of_its_own_adds_nothing_to_a_tenant(lab):
    state = quota_state(lab, 5.0)
    job = state.pending[0]
    assert queue.quota_refusal(state, job, decide(state, job).assignment) is None


def test_the_charge_after_a_placement_is_what_was_added(lab):
    state = quota_state(lab, 5.0, charged_to="code")
    job = state.pending[0]
    assignment = decide(state, job).assignment
    before = charge.by_tenant(state)
    after = charge.by_tenant(applied(state, assignment, job.spec, job.profile))
    for tenant, added in queue.added_usd_per_h(state, job, assignment).items():
        assert after[tenant] - before.get(tenant, 0.0) == pytest.approx(added)


def test_a_newcomers_nodes_do_not_raise_a_co_runner_above_its_quota(lab):
    """math's long job pays most of the nodes that code's short one brings along."""
    member = replace(lab.member("x", 90, 90), tenant="math")
    spec = replace(lab.spec("new", slo=200.0, rollout=2), tenant="code")
    state = lab.state(lab.group(member), cluster=lab.cluster(3, 2))
    state = lab.waiting(state, (spec, lab.profile(1, 1)))
    state = sharing(state, Tenant(name="math", quota_usd_per_h=5.5), Tenant(name="code"))
    job = state.pending[0]
    assignment = decide(state, job).assignment
    assert assignment.added_nodes == ("r1", "r2")
    reason = queue.quota_refusal(state, job, assignment)
    assert reason is not None
    assert "tenant math" in reason.message


def test_without_a_quota_nothing_is_held_back(lab):
    state = quota_state(lab, 0.0, charged_to="code")
    job = state.pending[0]
    assert queue.quota_refusal(state, job, decide(state, job).assignment) is None
    assert queue.over_quota(state, job, added_usd_per_h=1e9) is None


def test_an_undeclared_tenant_has_no_quota(lab):
    state = sharing(quota_state(lab, 1.0), Tenant(name="code", quota_usd_per_h=0.1))
    assert queue.over_quota(state, state.pending[0], added_usd_per_h=5.0) is None


def test_over_quota_counts_what_the_tenant_is_charged_now(lab):
    state = quota_state(lab, 6.0)
    job = state.pending[0]
    assert queue.over_quota(state, job, added_usd_per_h=1.0) is None
    reason = queue.over_quota(state, job, added_usd_per_h=1.01)
    assert "charged 5.00 USD/h" in reason.message
    known = {"math": 5.5}
    assert queue.over_quota(state, job, added_usd_per_h=1.0, charged=known) is not None


def test_an_id_breaks_ties_between_tenants_charged_alike(lab):
    specs = [replace(lab.spec("m"), tenant="math"), replace(lab.spec("c"), tenant="code")]
    state = wanting(lab, lab.state(), *specs)
    moment = now(state)
    pending = tuple(
        replace(one, job=replace(one.job, created_at=moment, id=JobId(f"j-{one.spec.name}")))
        for one in state.pending
    )
    shared = sharing(replace(state, pending=pending), Tenant(name="math"), Tenant(name="code"))
    assert names(queue.order(shared, now=moment)) == ["c", "m"]
