"""One pass over the pending jobs."""

from __future__ import annotations

from dataclasses import replace

from rmux.place.settle import applied, founded_by, settle


def test_the_oldest_job_is_served_first(lab):
    state = lab.state(cluster=lab.cluster(rollout=1, train=1))
    tight = lab.spec("old", slo=1.0), lab.profile(100, 50)
    state = lab.waiting(state, tight, (lab.spec("young", slo=1.0), lab.profile(100, 50)))
    state = replace(state, pending=state.pending[::-1])
    first, second = settle(state)
    assert (first.job_id, first.admitted) == ("j-old", True)
    assert (second.job_id, second.admitted) == ("j-young", False)
    assert second.reason.code == "slo"


def test_a_later_job_joins_the_group_that_an_earlier_one_founds(lab):
    both = (lab.spec("a"), lab.profile(100, 100)), (lab.spec("b"), lab.profile(100, 100))
    first, second = settle(lab.waiting(lab.state(), *both))
    assert first.assignment.group_id is None
    assert second.assignment.group_id == founded_by("j-a")
    assert second.best.marginal_usd_per_h == 0


def test_a_job_that_does_not_fit_holds_up_nobody_behind_it(lab):
    wide = lab.spec("wide", rollout=9), lab.profile(1, 1)
    decisions = settle(lab.waiting(lab.state(), wide, (lab.spec("b"), lab.profile(1, 1))))
    assert [one.admitted for one in decisions] == [False, True]
    assert decisions[0].never_fits


def test_nothing_pending_decides_nothing(lab):
    assert settle(lab.state()) == ()


def test_an_assignment_adds_and_removes_the_nodes_of_its_group(lab):
    state = lab.state(lab.group(lab.member("a", 100, 100)))
    decision = lab.admit(state, (150, 50), spec=lab.spec("new", slo=1.1))
    moved = replace(decision.assignment, removed_nodes=("r0",), added_nodes=("r1",))
    after = applied(state, moved, lab.spec("new"), lab.profile(150, 50))
    assert after.groups[0].nodes == ("t0", "r1")
    assert [member.name for member in after.groups[0].members] == ["a", "new"]
