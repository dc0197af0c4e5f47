from __future__ import annotations

from datetime import timedelta

import pytest

from rmux.errors import ConflictError, NotFoundError, UserError
from rmux.job import JobState, Phase, Reason
from rmux.store import groups, jobs, profiles


def put(store, *found):
    with store.write() as conn:
        for job in found:
            jobs.insert(conn, job)


def test_a_job_comes_back_as_it_was_stored(store, samples):
    job = samples.job()
    put(store, job)
    with store.read() as conn:
        assert jobs.get(conn, job.id) == job


def test_a_pending_job_moves_the_revision_and_its_id_is_taken(store, samples):
    put(store, samples.job())
    with store.write() as conn:
        assert groups.revision(conn) == 1
        with pytest.raises(ConflictError):
            jobs.insert(conn, samples.job())


def test_a_name_means_the_active_job_that_has_it(store, samples):
    put(
        store,
        samples.job("j-aaaaaa1", state=JobState.FAILED),
        samples.job("j-aaaaaa2"),
        samples.job("j-aaaaaa3", state=JobState.SUCCEEDED, age_s=-5),
    )
    with store.read() as conn:
        assert jobs.resolve(conn, "math") == "j-aaaaaa2"
        assert jobs.by_name(conn, "math").id == "j-aaaaaa3"
        assert jobs.by_name(conn, "other") is None


def test_a_name_of_ended_jobs_means_the_newest(store, samples):
    put(
        store,
        samples.job("j-aaaaaa1", state=JobState.FAILED, age_s=10),
        samples.job("j-aaaaaa2", state=JobState.SUCCEEDED, age_s=20),
    )
    with store.read() as conn:
        assert jobs.resolve(conn, "math") == "j-aaaaaa1"


def test_a_prefix_of_six_characters_means_the_one_job_that_starts_so(store, samples):
    put(store, samples.job("j-01kb3v7r5w8k2"), samples.job("j-01kb3w7r5w8k2", name="b"))
    with store.read() as conn:
        assert jobs.resolve(conn, "j-01kb3v") == "j-01kb3v7r5w8k2"
        assert jobs.resolve(conn, "01kb3w") == "j-01kb3w7r5w8k2"
        with pytest.raises(NotFoundError, match="no job 'j-01kb'"):
            jobs.resolve(conn, "j-01kb")
        with pytest.raises(NotFoundError):
            jobs.resolve(conn, "j-______")


def test_what_fits_several_jobs_is_ambiguous_and_lists_them(store, samples):
    put(store, samples.job("j-01kb3v7a"), samples.job("j-01kb3v7b"))
    with store.read() as conn:
        for text in ("j-01kb3v", "math"):
            with pytest.raises(UserError, match="j-01kb3v7a, j-01kb3v7b") as caught:
                jobs.resolve(conn, text)
            assert caught.value.code == "id.ambiguous"


def test_ls_filters_by_state_group_and_end_and_limits_to_the_newest(store, samples):
    put(store, *(samples.job(f"j-00000{n}", name=f"n{n}", age_s=100 - n) for n in range(5)))
    with store.write() as conn:
        jobs.update(conn, "j-000000", group_id="g-1")
        long_ago = samples.now - timedelta(days=2)
        jobs.set_state(conn, "j-000001", JobState.CANCELLED, ended_at=long_ago)
    with store.read() as conn:

        def names(**how):
            return [job.spec.name for job in jobs.ls(conn, **how)]

        assert names() == ["n0", "n1", "n2", "n3", "n4"]
        assert names(limit=2) == ["n3", "n4"]
        assert names(group="g-1") == ["n0"]
        assert names(states={JobState.CANCELLED}) == ["n1"]
        assert names(ended_after=samples.now - timedelta(days=1)) == ["n0", "n2", "n3", "n4"]
        assert jobs.count(conn, states={JobState.PENDING}) == 4


def test_ending_a_job_dates_it_and_clears_its_phase(store, samples):
    put(store, samples.job(state=JobState.RUNNING))
    with store.write() as conn:
        jobs.update(conn, "j-000001", phase=Phase.TRAIN, phase_state="running")
        ended = jobs.set_state(
            conn,
            "j-000001",
            JobState.FAILED,
            reason=Reason(code="worker", message="exit 1"),
            error="Traceback",
        )
    assert (ended.state, ended.phase, ended.phase_state) == (JobState.FAILED, None, "")
    assert ended.reason == Reason(code="worker", message="exit 1")
    assert ended.error == "Traceback"
    assert ended.ended_at is not None


def test_a_state_that_does_not_follow_is_refused_and_changes_nothing(store, samples):
    put(store, samples.job(state=JobState.SUCCEEDED))
    with store.write() as conn:
        with pytest.raises(ConflictError, match="succeeded cannot become running"):
            jobs.set_state(conn, "j-000001", JobState.RUNNING)
        assert jobs.get(conn, "j-000001").state is JobState.SUCCEEDED


def test_the_same_state_again_renews_the_reason_only(store, samples):
    put(store, samples.job())
    with store.write() as conn:
        reason = Reason(code="residency", message="short by 2 GiB")
        jobs.set_state(conn, "j-000001", JobState.PENDING, reason=reason)
        assert jobs.set_state(conn, "j-000001", JobState.PENDING).reason == reason
        assert jobs.set_state(conn, "j-000001", JobState.PLACED).reason == Reason()


def test_running_dates_the_start_once(store, samples):
    put(store, samples.job(state=JobState.PLACED))
    with store.write() as conn:
        first = jobs.set_state(conn, "j-000001", JobState.RUNNING).started_at
        jobs.set_state(conn, "j-000001", JobState.PAUSED)
        assert first is not None
        assert jobs.set_state(conn, "j-000001", JobState.RUNNING).started_at == first


def test_desired_tells_whether_it_changed_and_leaves_ended_jobs(store, samples):
    put(store, samples.job("j-000001"), samples.job("j-000002", state=JobState.SUCCEEDED))
    with store.write() as conn:
        assert jobs.set_desired(conn, "j-000001", "cancel") is True
        assert jobs.set_desired(conn, "j-000001", "cancel") is False
        assert jobs.set_desired(conn, "j-000002", "cancel") is False
        assert jobs.get(conn, "j-000002").desired == "run"


def test_update_refuses_columns_that_have_a_rule_of_their_own(store, samples):
    put(store, samples.job())
    with store.write() as conn:
        jobs.update(conn, "j-000001", iteration=3, reward_last=0.5, run_dir="/tmp/x")
        assert jobs.get(conn, "j-000001").iteration == 3
        with pytest.raises(TypeError, match="cannot write state"):
            jobs.update(conn, "j-000001", state="running")
        with pytest.raises(NotFoundError):
            jobs.update(conn, "j-000009", iteration=3)


def test_profiles_come_back_measured_before_analytic_and_newest_first(store, samples):
    import dataclasses

    from rmux.estimate import ProfileSource

    measured = samples.profile("p-1")
    newer = dataclasses.replace(
        measured, id="p-2", created_at=samples.now + timedelta(hours=1), sync_s=9.0
    )
    analytic = dataclasses.replace(
        measured,
        id="p-3",
        source=ProfileSource.ANALYTIC,
        created_at=samples.now + timedelta(hours=2),
    )
    how = {"rollout_hardware": "cpu", "train_hardware": "cpu"}
    with store.write() as conn:
        for profile in (measured, newer, analytic):
            profiles.save(conn, profile)
        profiles.save(conn, measured)
        assert profiles.find(conn, spec_hash="x3:1", **how) == newer
        assert profiles.find(conn, spec_hash="x3:2", **how) is None
        assert profiles.get(conn, "p-3") == analytic
        assert [found.id for found in profiles.ls(conn)] == ["p-3", "p-2", "p-1"]
        with pytest.raises(NotFoundError):
            profiles.get(conn, "p-9")
