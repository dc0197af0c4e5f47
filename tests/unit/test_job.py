import pytest

from rmux.errors import ConflictError
from rmux.job import JobState, RolloutSpec


def test_a_job_that_ended_never_goes_on():
    for ended in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
        assert ended.is_terminal
        for target in JobState:
            with pytest.raises(ConflictError):
                ended.check_next(target)


def test_a_pending_job_cannot_run_before_it_is_placed():
    JobState.PENDING.check_next(JobState.PLACED)
    with pytest.raises(ConflictError, match="pending cannot become running") as caught:
        JobState.PENDING.check_next(JobState.RUNNING)
    assert caught.value.details == {"state": "pending", "wanted": "running"}


def test_a_lost_job_may_be_placed_anew():
    JobState.LOST.check_next(JobState.PENDING)
    assert not JobState.LOST.is_terminal


def test_samples_are_prompts_times_samples_per_prompt():
    assert RolloutSpec(prompts=3, samples_per_prompt=4).num_samples == 12
