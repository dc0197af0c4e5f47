"""One pass over the pending jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rmux.cluster import Policy, Tenant
from rmux.ids import JobId
from rmux.place.drift import Seen
from rmux.place.settle import applied, founded_by, settle, settle_pending

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_oldest_job_is_served_first(lab):
    state = lab.state(cluster=lab.cluster(rollout=1, train=1))
    tight = lab.spec("old", slo=1.0), lab.profile(100, 50)
    state = lab.waiting(state, tight, (lab.spec("young", slo=1.0), lab.profile(100, 50)))
    state = replace(state, pending=state.pending[::-1])
    first, second = settle_pending(state)
    assert (first.job_id, first.admitted) == ("j-old", True)
    assert (second.job_id, second.admitted) == ("j-young", False)
    assert second.reason.code == "slo"


def test_a_later_job_joins_the_group_that_an_earlier_one_founds(lab):
    both = (lab.spec("a"), lab.profile(100, 100)), (lab.spec("b"), lab.profile(100, 100))
    first, second = settle_pending(lab.waiting(lab.state(), *both))
    assert first.assignment.group_id is None
    assert second.assignment.group_id == founded_by("j-a")
    assert second.best.marginal_usd_per_h == 0


def test_a_job_that_does_not_fit_holds_up_nobody_behind_it(lab):
    wide = lab.spec("wide", rollout=9), lab.profile(1, 1)
    decisions = settle_pending(lab.waiting(lab.state(), wide, (lab.spec("b"), lab.profile(1, 1))))
    assert [one.admitted for one in decisions] == [False, True]
    assert decisions[0].never_fits


def test_nothing_pending_decides_nothing(lab):
    assert settle_pending(lab.state()) == ()
    assert settle(lab.state()).rebalance is None


def test_an_assignment_adds_and_removes_the_nodes_of_its_group(lab):
    group = replace(lab.group(lab.member("a", 100, 100)), nodes=("r0", "r1", "t0"))
    state = lab.state(group, cluster=lab.cluster(rollout=3))
    decision = lab.admit(state, (100, 100), spec=lab.spec("new", slo=2))
    moved = replace(decision.assignment, removed_nodes=("r1",), added_nodes=("r2",))
    after = applied(state, moved, lab.spec("new"), lab.profile(100, 100))
    assert after.groups[0].nodes == ("r0", "t0", "r2")
    assert [member.name for member in after.groups[0].members] == ["a", "new"]


def with_cluster(state, **changes):
    return replace(state, cluster=replace(state.cluster, **changes))


def test_the_policy_says_whether_a_pass_moves_anybody(lab):
    first = lab.group(lab.member("a", 50, 50), name="g-1")
    second = lab.group(lab.member("b", 50, 50, ("r1",), ("t1",)), name="g-2")
    state = lab.state(first, second)
    assert settle(state).rebalance is None
    moving = with_cluster(state, policy=Policy(rebalance=True))
    assert len(settle(moving).rebalance.moves) == 1
    assert settle(moving, staying={"j-a", "j-b"}).rebalance.moves == ()


def test_who_was_placed_in_a_pass_is_not_moved_in_it(lab):
    state = lab.waiting(lab.state(), *[(lab.spec(name), lab.profile(50, 50)) for name in "ab"])
    done = settle(with_cluster(state, policy=Policy(rebalance=True)))
    assert [one.admitted for one in done.decisions] == [True, True]
    assert done.rebalance.moves == ()


def test_a_tenant_over_its_quota_waits_and_the_next_goes_on(lab):
    mine = replace(lab.spec("mine", slo=1.0), tenant="math")
    jobs = (mine, lab.profile(100, 50)), (lab.spec("other", slo=1.0), lab.profile(100, 50))
    state = lab.waiting(lab.state(), *jobs)
    state = with_cluster(state, tenants=(Tenant(name="math", quota_usd_per_h=4.9),))
    decisions = {one.job_id: one for one in settle_pending(state)}
    assert decisions["j-mine"].reason.code == "quota"
    assert decisions["j-other"].admitted
    roomy = with_cluster(state, tenants=(Tenant(name="math", quota_usd_per_h=5.0),))
    assert all(one.admitted for one in settle_pending(roomy))


def test_with_ageing_small_jobs_do_not_slip_past_a_large_one_for_ever(lab):
    """Two nodes, one free: the job that needs both keeps it."""
    busy = lab.group(lab.member("busy", 100, 50, slo=1.0))
    jobs = (
        (lab.spec("wide", slo=1.0, rollout=2), lab.profile(100, 50)),
        (lab.spec("small", slo=1.0), lab.profile(100, 50)),
    )
    state = lab.waiting(lab.state(busy), *jobs)
    later = EPOCH + timedelta(hours=2)
    assert [one.admitted for one in settle_pending(state, now=later)] == [False, True]
    ageing = with_cluster(state, policy=Policy(ageing_s=3600.0))
    wide, small = settle_pending(ageing, now=later)
    assert not wide.admitted
    assert (small.admitted, small.reason.code) == (False, "reserved")


def test_a_higher_priority_goes_first(lab):
    urgent = replace(lab.spec("urgent", slo=1.0), priority=1)
    jobs = (lab.spec("old", slo=1.0), lab.profile(100, 50)), (urgent, lab.profile(100, 50))
    state = lab.waiting(lab.state(cluster=lab.cluster(1, 1)), *jobs)
    first, second = settle_pending(state)
    assert (first.job_id, first.admitted, second.admitted) == ("j-urgent", True, False)


def test_a_deadline_takes_the_cheapest_place_that_ends_in_time(lab):
    """Shared it takes 200 s an iteration, alone 100 s."""
    group = lab.group(lab.member("a", 100, 100))
    plain = lab.spec("new", slo=2.0)
    hurried = replace(plain, iterations=10, deadline_s=1500.0)
    placed = []
    for spec in (plain, hurried):
        state = lab.waiting(lab.state(group), (spec, lab.profile(50, 50)))
        (decision,) = settle_pending(state, now=EPOCH)
        placed.append(decision.assignment.group_id)
    assert placed == ["g-1", None]


def grown(lab, *, rollout=2, **policy):
    """b has grown from (20, 5) to (40, 5) s; a, with the same plan, accepts 50 s."""
    pair = lab.group(lab.member("a", 20, 5), lab.member("b", 20, 5))
    state = lab.state(pair, cluster=lab.cluster(rollout, 2))
    cluster = replace(state.cluster, policy=Policy(**policy))
    return replace(state, cluster=cluster), {JobId("j-b"): Seen(rollout_s=40, train_s=5)}


def test_a_job_that_grew_gets_a_node_of_its_own_where_that_keeps_every_promise(lab):
    state, seen = grown(lab)
    again = settle(state, observed=seen).readmission
    assert (again.broken.job_id, again.decision.admitted) == ("j-b", True)
    assert again.decision.assignment.group_id == "g-1"
    assert again.decision.assignment.added_nodes == ("r1",)


def test_a_job_that_may_not_leave_its_group_is_told_why_it_stays(lab):
    state, seen = grown(lab, rollout=1)
    again = settle(state, observed=seen, staying={JobId("j-b")}).readmission
    assert (again.decision.admitted, again.decision.reason.code) == (False, "slo")


def test_promises_come_before_money(lab):
    """Two groups of one each could share: not in the pass that places another job anew."""
    state, seen = grown(lab, rollout=4, rebalance=True)
    others = [
        lab.group(lab.member(name, 5, 5, (f"r{at}",), (f"t{at}",)), name=f"g-{at}")
        for name, at in (("c", 2), ("d", 3))
    ]
    cluster = replace(lab.cluster(5, 5), policy=state.cluster.policy)
    state = replace(state, cluster=cluster, groups=(*state.groups, *others))
    assert settle(state).rebalance.moves
    done = settle(state, observed=seen)
    assert (done.readmission.decision.admitted, done.rebalance) == (True, None)


def test_without_anything_seen_nobody_is_placed_anew(lab):
    state, _ = grown(lab)
    assert settle(state).readmission is None
    assert settle(state, observed={}).readmission is None


def test_jobs_placed_in_this_pass_are_not_moved_by_it(lab):
    waiting = lab.waiting(
        lab.state(cluster=replace(lab.cluster(), policy=Policy(rebalance=True))),
        (lab.spec("a", slo=1.0), lab.profile(100, 50)),
        (lab.spec("b", slo=1.0), lab.profile(100, 50)),
    )
    done = settle(waiting)
    assert [one.admitted for one in done.decisions] == [True, True]
    assert done.rebalance.moves == ()
