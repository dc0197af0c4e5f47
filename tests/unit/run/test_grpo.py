"""The GRPO recipe on engines that sample letters at random, with its rewards in real sandboxes."""

import random

import pytest

from rmux.errors import SpecError, UserError, WorkerError
from rmux.job import JobSpec, Phase, RewardSpec, RolloutSpec
from rmux.run.driver import shim
from rmux.run.driver.engines import Response, SyncReport, TrainReport
from rmux.run.driver.recipes import grpo, prompts
from rmux.run.driver.session import numbers_of
from rmux.run.driver.tokenizer import CharTokenizer

TASKS = """
import os, pathlib

def prompts(rng, count):
    return ["".join(rng.sample("abcdef", 3)) for _ in range(count)]

def one_prompt(rng, count):
    return ["abc"]

def long_prompts(rng, count):
    return ["abcabcabcabc"] * count

def reward(prompt, response):
    return sum(c in prompt for c in response) / len(response)

def shy_reward(prompt, response):
    if response[0] in "abc":
        raise ValueError("not these")
    return reward(prompt, response)

def no_reward(prompt, response):
    raise ValueError("never")
"""


class RandomEngines:
    """Fleet and trainer at once; what they are given is kept."""

    def __init__(self):
        self.version = 0
        self.prompts, self.seeds, self.responses, self.batches = [], [], [], []

    def fleet(self):
        return self

    def trainer(self):
        return self

    def generate(self, prompts, *, sampling, seeds=None, on_progress=None):
        self.prompts.append(prompts)
        self.seeds.append(seeds)
        on_progress({"responses_done": len(prompts), "responses": len(prompts), "tokens": 0})
        made = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            rng = random.Random(seed)
            tokens = tuple(rng.randrange(6) for _ in range(rng.randrange(1, sampling.max_tokens)))
            response = Response(
                prompt_tokens=prompt,
                tokens=tokens,
                logprobs=(-1.0,) * len(tokens),
                weight_version=self.version,
                finish_reason="stop",
            )
            made.append(response)
        self.responses.append(made)
        return made

    def step(self, samples):
        self.batches.append(samples)
        return TrainReport(steps=1, max_logprob_gap=0.0, metrics={"loss": 0.5})

    def publish(self, fleet):
        self.version += 1
        return SyncReport(version=self.version, sent_bytes=1, seconds=0.0, checksum="c")


class PlainSession:
    """Runs each phase at once and keeps what it would report."""

    def __init__(self):
        self.engines = RandomEngines()
        self.phases, self.reported, self.progressed = [], [], []

    def run(self, kind, function, *, park=None, wake=None):
        result = function()
        self.phases.append(kind)
        self.reported.append(numbers_of(result))
        return result

    def progress(self, numbers):
        self.progressed.append(numbers)


@pytest.fixture
def session():
    session = PlainSession()
    shim.activate(session)
    yield session
    shim.activate(None)


@pytest.fixture
def make_spec(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    CharTokenizer().save(tmp_path)

    def make(*, prompts="prompts", reward="reward", iterations=3):
        return JobSpec(
            name="small",
            seed=4,
            iterations=iterations,
            model_path=str(tmp_path),
            task_module=f"{tmp_path}/tasks.py:{prompts}",
            rollout=RolloutSpec(prompts=4, samples_per_prompt=3, max_prompt_tokens=8, max_tokens=9),
            reward=RewardSpec(function=f"{tmp_path}/tasks.py:{reward}"),
        )

    return make


def test_each_iteration_is_rollout_train_sync_with_its_numbers(make_spec, session):
    grpo.main(make_spec())
    assert session.phases == [Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC] * 3
    rolled, trained, synced = session.reported[:3]
    lengths = [len(response.tokens) for response in session.engines.responses[0]]
    assert rolled["tokens"] == sum(lengths)
    assert rolled["response_length"] == pytest.approx(sum(lengths) / 12)
    assert rolled["response_length_max"] == max(lengths)
    assert trained["loss"] == 0.5
    assert 0 < trained["reward"] < 1
    assert trained["reward_std"] > 0
    assert trained["reward_failed"] == 0
    assert synced["version"] == 1
    assert len(session.progressed) == 3


def test_each_prompt_is_sampled_as_a_group_with_seeds_of_its_own(make_spec, session):
    grpo.main(make_spec(iterations=1))
    (prompts,), (seeds,) = session.engines.prompts, session.engines.seeds
    assert len(prompts) == 12
    assert all(len(set(prompts[start : start + 3])) == 1 for start in range(0, 12, 3))
    assert len(set(seeds)) == 12


def test_what_is_trained_on_is_what_was_sampled_and_groups_have_mean_zero(make_spec, session):
    grpo.main(make_spec(iterations=1))
    (samples,), (responses,) = session.engines.batches, session.engines.responses
    assert [sample.response for sample in samples] == responses
    for start in range(0, 12, 3):
        advantages = [sample.advantage for sample in samples[start : start + 3]]
        assert sum(advantages) == pytest.approx(0, abs=1e-6)
    best = max(samples, key=lambda sample: sample.advantage)
    assert best.advantage > 0.5


def test_a_resumed_job_gets_the_prompts_and_seeds_it_would_have_had(
    make_spec, session, monkeypatch
):
    grpo.main(make_spec(iterations=4))
    whole = (session.engines.prompts, session.engines.seeds)
    session.engines = RandomEngines()
    monkeypatch.setenv("RMUX_START_ITERATION", "2")
    grpo.main(make_spec(iterations=4))
    assert (session.engines.prompts, session.engines.seeds) == (whole[0][2:], whole[1][2:])
    assert whole[0][0] != whole[0][1]
    assert whole[1][0] != whole[1][1]


def test_a_failed_reward_takes_its_sample_out_of_the_group_and_is_counted(make_spec, session):
    grpo.main(make_spec(reward="shy_reward", iterations=1))
    (samples,), (responses,) = session.engines.batches, session.engines.responses
    kept = [response for response in responses if response.tokens[0] > 2]
    assert [sample.response for sample in samples] == kept
    assert 0 < len(kept) < 12
    assert session.reported[1]["reward_failed"] == 12 - len(kept)


def test_a_reward_that_always_fails_ends_the_job_before_it_trains(make_spec, session):
    with pytest.raises(WorkerError, match="failed for all 12 responses") as caught:
        grpo.main(make_spec(reward="no_reward"))
    assert caught.value.code == "reward.failed"
    assert session.phases == [Phase.ROLLOUT]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("one_prompt", "asked for 4 texts and gave 1"),
        ("long_prompts", "12 tokens, rollout.max_prompt_tokens is 8"),
    ],
)
def test_prompts_that_do_not_fit_the_spec_are_refused(make_spec, session, prompts, message):
    with pytest.raises(UserError, match=message):
        grpo.main(make_spec(prompts=prompts))
    assert session.phases == []


def test_a_prompt_source_that_is_not_there_is_named(make_spec, tmp_path):
    with pytest.raises(SpecError, match="no function 'absent'"):
        prompts.load_prompts(make_spec(prompts="absent").task_module)
    with pytest.raises(SpecError, match="no Python file"):
        prompts.load_prompts(f"{tmp_path}/nowhere.py:prompts")
