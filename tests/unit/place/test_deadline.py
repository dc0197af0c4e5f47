"""When a job would end at a place, and which place ends it in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmux.group import PendingJob
from rmux.place import deadline, queue
from rmux.place.admit import admit
from rmux.place.candidates import Kind
from rmux.place.decision import Verdict

MINUTE = timedelta(minutes=1)


def decided(lab, deadline_s: float, *, iterations: int = 100, margin: float = 0.0, rollout=4):
    """A job of (10, 10) s that may join one of (30, 30) s for nothing, or go alone: per iteration
    60 s or 20 s."""
    state = lab.state(
        lab.group(lab.member("x", 30, 30)), cluster=lab.cluster(rollout=rollout, train=rollout)
    )
    spec = replace(lab.spec("new", slo=4.0), iterations=iterations, deadline_s=deadline_s)
    state = lab.waiting(state, (spec, lab.profile(10, 10, init_s=5.0)))
    job = state.pending[0]
    decision = admit(
        state, spec=spec, profile=job.profile, job_id=job.job.id, rule="interval", margin=margin
    )
    return decision, job


def at(job: PendingJob, waited: timedelta = timedelta(0)):
    return job.job.created_at + waited


def test_without_a_deadline_the_cheapest_place_stays(lab):
    decision, job = decided(lab, 0.0)
    assert decision.best.group_id == "g-1"
    assert queue.preferring_deadline(decision, job, now=at(job)) is decision
    assert queue.late(decision, job, now=at(job)) is None


def test_a_deadline_that_the_cheapest_place_meets_changes_nothing(lab):
    decision, job = decided(lab, 6010.0)
    assert queue.preferring_deadline(decision, job, now=at(job)) is decision


def test_a_place_that_meets_the_deadline_is_preferred_to_a_cheaper_one(lab):
    decision, job = decided(lab, 6009.0)
    preferred = queue.preferring_deadline(decision, job, now=at(job))
    assert preferred.best.kind is Kind.NEW
    assert preferred.best.verdict is Verdict.CHOSEN
    assert preferred.assignment.group_id is None
    assert preferred.assignment.placement == preferred.best.placement
    assert preferred.assignment.added_nodes == preferred.best.added_nodes
    passed = preferred.candidates[decision.chosen]
    assert (passed.verdict, passed.reason.code) == (Verdict.FEASIBLE, "deadline")
    assert sum(one.verdict is Verdict.CHOSEN for one in preferred.candidates) == 1


def test_a_deadline_that_no_place_meets_places_the_job_all_the_same(lab):
    decision, job = decided(lab, 2009.0)
    assert queue.preferring_deadline(decision, job, now=at(job)) is decision
    reason = queue.late(decision, job, now=at(job))
    assert reason.code == "deadline"
    assert queue.earliest_finish_s(decision, job, now=at(job)) == 2010.0
    assert "33m30s" in reason.message


def test_a_deadline_counts_from_submission(lab):
    decision, job = decided(lab, 2010.0)
    assert queue.late(decision, job, now=at(job)) is None
    assert queue.late(decision, job, now=at(job, MINUTE)).code == "deadline"
    assert queue.earliest_finish_s(decision, job, now=at(job, MINUTE)) == 2070.0


def test_only_the_iterations_that_are_left_count(lab):
    decision, job = decided(lab, 6009.0)
    resumed = replace(job, job=replace(job.job, iteration=60))
    assert queue.preferring_deadline(decision, resumed, now=at(job)) is decision
    assert queue.earliest_finish_s(decision, resumed, now=at(job)) == 10 + 40 * 20


def test_the_margin_counts_where_devices_are_shared(lab):
    decision, job = decided(lab, 6010.0, margin=0.05)
    assert decision.best.group_id == "g-1"
    assert deadline.finish_s(decision, decision.best, job) == pytest.approx(10 + 6300)
    assert queue.preferring_deadline(decision, job, now=at(job)).best.kind is Kind.NEW


def test_a_job_that_has_to_wait_is_told_its_end_alone_from_now_on(lab):
    state = lab.state(lab.group(lab.member("x", 30, 30, slo=1.0)), cluster=lab.cluster(1, 1))
    spec = replace(lab.spec("new", slo=1.0), iterations=100, deadline_s=2000.0)
    job = lab.waiting(state, (spec, lab.profile(10, 10))).pending[0]
    decision = admit(state, spec=spec, profile=job.profile, job_id=job.job.id)
    assert not decision.admitted
    assert queue.late(decision, job, now=at(job)) is None
    assert queue.late(decision, job, now=at(job, MINUTE)).code == "deadline"
