"""The fit of timed samples."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rmux.errors import CheckError
from rmux.estimate import ProfileSource
from rmux.ids import ProfileId
from rmux.job import CheckpointSpec, JobSpec, RewardSpec, RolloutSpec
from rmux.profile.measure import Samples, fit

SPEC = JobSpec(
    name="n",
    rollout=RolloutSpec(prompts=2, samples_per_prompt=5, max_prompt_tokens=10, max_tokens=90),
)
SEEN = Samples(
    rollout_s=(4.0, 6.0, 5.0),
    train_s=(2.0, 2.2, 2.1),
    sync_s=(0.1, 0.3),
    checkpoint_s=(0.4,),
    rollout_switch_s=(0.2, 0.1),
    train_switch_s=(0.05,),
    rollout_cold_s=8.0,
    train_cold_s=4.0,
    init_s=2.5,
    sync_bytes=1000,
    rollout_resident_bytes=7,
    train_resident_bytes=9,
    switch_peak_bytes=3,
    engines=(("vllm", "0.32"),),
)


def fitted(samples: Samples, spec: JobSpec = SPEC):
    return fit(
        samples,
        spec,
        profile_id=ProfileId("p-1"),
        spec_hash="x3:1",
        rollout_hardware="cpu",
        train_hardware="cpu",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_the_worst_case_is_the_longest_run_and_the_expected_the_median():
    profile = fitted(SEEN)
    assert profile.source is ProfileSource.MEASURED
    assert (profile.rollout.worst_s, profile.rollout.expected_s) == (6.0, 5.0)
    assert (profile.train.worst_s, profile.train.num_samples) == (2.2, 3)
    assert (profile.sync_s, profile.rollout.switch_s, profile.rollout.cold_s) == (0.3, 0.2, 8.0)
    assert profile.engines == (("vllm", "0.32"),)


def test_the_rewards_stated_time_is_in_the_worst_rollout_up_to_its_deadline():
    # 10 samples of 0.3 s each, between the phases that are timed.
    slow = replace(SPEC, reward=RewardSpec(seconds_per_sample=0.3, timeout_s=10.0))
    assert fitted(SEEN, slow).rollout.worst_s == pytest.approx(6.0 + 3.0)
    assert fitted(SEEN, slow).rollout.expected_s == 5.0
    cut = replace(SPEC, reward=RewardSpec(seconds_per_sample=30.0, timeout_s=0.5))
    assert fitted(SEEN, cut).rollout.worst_s == pytest.approx(6.0 + 5.0)


def test_a_run_with_short_responses_is_scaled_to_the_token_limit():
    profile = fitted(replace(SEEN, longest_tokens=(30, 90, 45)))
    # 4 s at 30 of 90 tokens would be 12 s; 5 s at 45 would be 10 s.
    assert profile.rollout.worst_s == 12.0
    assert profile.rollout.expected_s == 5.0


def test_a_rollout_is_scaled_to_all_the_refills_that_there_may_be():
    refilled = replace(SPEC, rollout=replace(SPEC.rollout, refills=2))
    profile = fitted(replace(SEEN, rounds=(1, 3, 2)), refilled)
    # 4 s for one round would be 12 s for three; 10 s for each of two waits is the deadline's.
    assert profile.rollout.worst_s == pytest.approx(12.0 + 2 * 10.0)


def test_training_is_scaled_by_the_tokens_it_saw():
    profile = fitted(replace(SEEN, total_tokens=(500, 1000, 1000)))
    assert profile.train.worst_s == pytest.approx(2.0 * 1000 / 500)


def test_nothing_is_scaled_down():
    profile = fitted(replace(SEEN, longest_tokens=(180, 180, 180), total_tokens=(9000, 9000, 9000)))
    assert (profile.rollout.worst_s, profile.train.worst_s) == (6.0, 2.2)


def test_a_checkpoint_every_other_iteration_costs_half_per_iteration():
    profile = fitted(SEEN, replace(SPEC, checkpoint=CheckpointSpec(every=2)))
    assert profile.checkpoint_s == 0.2


def test_no_runs_are_an_error_and_not_a_profile():
    with pytest.raises(CheckError, match="nothing was measured of n"):
        fitted(replace(SEEN, rollout_s=()))
