"""When phases have to be over by the plan in which each takes its worst case."""

from __future__ import annotations

from rmux.job import Phase
from rmux.place.latest import Latest


def test_a_phase_is_planned_after_those_before_it_on_its_devices_and_in_its_loop(lab):
    a, b = (lab.member(name, 100, 60, ["r0"], sync_s=5.0) for name in ("a", "b"))
    latest = Latest()

    def begin(member, phase, now_s):
        placement = member.placement
        devices = placement.rollout if phase is Phase.ROLLOUT else placement.train
        profile = member.profile
        return latest.begin(member.job_id, phase, devices, profile=profile, now_s=now_s)

    assert begin(a, Phase.ROLLOUT, 0.0) == 100
    # It was over early; what comes next is planned as if it had not been.
    assert latest.start_s(b.job_id, Phase.ROLLOUT, b.placement.rollout) == 100
    assert begin(b, Phase.ROLLOUT, 40.0) == 200
    assert begin(a, Phase.TRAIN, 40.0) == 160
    assert latest.start_s(a.job_id, Phase.ROLLOUT, a.placement.rollout) == 200
    assert latest.start_s(b.job_id, Phase.TRAIN, b.placement.train) == 200


def test_a_phase_that_begins_late_is_planned_from_its_begin_and_one_far_ahead_from_its_own_length(
    lab,
):
    a = lab.member("a", 100, 60, ["r0"])
    latest = Latest()
    rollout = a.placement.rollout
    for now_s, end_s in ((0.0, 100.0), (500.0, 600.0), (501.0, 700.0), (502.0, 702.0)):
        ended = latest.begin(a.job_id, Phase.ROLLOUT, rollout, profile=a.profile, now_s=now_s)
        assert ended == end_s


def test_nobody_is_ahead_of_the_plan_of_other_members(lab):
    a = lab.member("a", 100, 60, ["r0"])
    latest = Latest()
    latest.begin(a.job_id, Phase.ROLLOUT, a.placement.rollout, profile=a.profile, now_s=0.0)
    latest.forget()
    assert latest.start_s(a.job_id, Phase.ROLLOUT, a.placement.rollout) is None


def test_one_step_off_policy_a_rollout_waits_for_the_train_before_the_last(lab):
    a = lab.member("a", 100, 60, ["r0"], sync_s=5.0)
    latest = Latest()

    def begin(phase, now_s):
        devices = a.placement.rollout if phase is Phase.ROLLOUT else a.placement.train
        return latest.begin(
            a.job_id, phase, devices, profile=a.profile, now_s=now_s, max_staleness=1
        )

    begin(Phase.ROLLOUT, 0.0)
    assert begin(Phase.TRAIN, 100.0) == 160
    assert latest.start_s(a.job_id, Phase.ROLLOUT, a.placement.rollout) == 100
    assert begin(Phase.ROLLOUT, 100.0) == 200
    assert begin(Phase.TRAIN, 200.0) == 260
    assert latest.start_s(a.job_id, Phase.ROLLOUT, a.placement.rollout) == 200
    begin(Phase.TRAIN, 260.0)
    assert latest.start_s(a.job_id, Phase.ROLLOUT, a.placement.rollout) == 265


def test_a_copy_goes_its_own_way(lab):
    a = lab.member("a", 100, 60, ["r0"])
    first = Latest()
    second = first.copy()
    second.begin(a.job_id, Phase.ROLLOUT, a.placement.rollout, profile=a.profile, now_s=0.0)
    assert first == Latest() != second
