"""The recipes on engines that sample letters at random, with their rewards in real sandboxes."""

import dataclasses
import random

import pytest

from rmux.errors import SpecError, UserError, WorkerError
from rmux.job import EnvironmentSpec, JobSpec, Phase, RewardSpec, RolloutSpec
from rmux.run.driver import shim
from rmux.run.driver.engines import Response, Sample, SyncReport, TrainReport
from rmux.run.driver.recipes import dapo, grpo, parts, ppo, prompts
from rmux.run.driver.session import numbers_of
from rmux.run.driver.tokenizer import CharTokenizer

TASKS = """
import time

def prompts(rng, count):
    return ["".join(rng.sample("abcdef", 3)) for _ in range(count)]

def one_prompt(rng, count):
    return ["abc"]

def nothing(rng, count):
    return None

def no_prompts(rng, count):
    return []

def endless(rng, count):
    while True:
        yield "abc"

def one_text(rng, count):
    return "abcd"

def number(rng, count):
    return ["abc"] * (count - 1) + [7]

def blank_prompts(rng, count):
    return [""] * count

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

def rare_reward(prompt, response):
    return float(len(response)) if prompt[0] in "ab" else 1.0

def same_reward(prompt, response):
    return 1.0

def slow_reward(prompt, response):
    time.sleep(0.1)
    return rare_reward(prompt, response)
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

    def make(*, prompts="prompts", reward="reward", iterations=3, refills=0, timeout_s=10.0):
        return JobSpec(
            name="small",
            seed=4,
            iterations=iterations,
            model_path=str(tmp_path),
            task_module=f"{tmp_path}/tasks.py:{prompts}",
            rollout=RolloutSpec(
                prompts=4,
                samples_per_prompt=3,
                max_prompt_tokens=8,
                max_tokens=9,
                refills=refills,
            ),
            reward=RewardSpec(function=f"{tmp_path}/tasks.py:{reward}", timeout_s=timeout_s),
        )

    return make


@pytest.mark.parametrize("recipe", [grpo, dapo, ppo])
def test_each_iteration_is_rollout_train_sync_with_its_numbers(make_spec, session, recipe):
    recipe.main(make_spec())
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


@pytest.mark.parametrize(
    ("recipe", "options"),
    [(grpo, {}), (ppo, {}), (dapo, {"reward": "rare_reward", "refills": 2})],
)
def test_a_resumed_job_gets_the_prompts_and_seeds_it_would_have_had(
    make_spec, session, monkeypatch, recipe, options
):
    recipe.main(make_spec(iterations=2, **options))
    before = len(session.engines.prompts)
    session.engines = RandomEngines()
    recipe.main(make_spec(iterations=4, **options))
    whole = (session.engines.prompts, session.engines.seeds)
    session.engines = RandomEngines()
    monkeypatch.setenv("RMUX_START_ITERATION", "2")
    recipe.main(make_spec(iterations=4, **options))
    assert (session.engines.prompts, session.engines.seeds) == (
        whole[0][before:],
        whole[1][before:],
    )
    assert whole[0][0] != whole[0][1]
    assert whole[1][0] != whole[1][1]


def test_a_failed_reward_takes_its_sample_out_of_the_group_and_is_counted(make_spec, session):
    grpo.main(make_spec(reward="shy_reward", iterations=1))
    (samples,), (responses,) = session.engines.batches, session.engines.responses
    kept = [response for response in responses if response.tokens[0] > 2]
    assert [sample.response for sample in samples] == kept
    assert 0 < len(kept) < 12
    assert session.reported[1]["reward_failed"] == 12 - len(kept)


@pytest.mark.parametrize("recipe", [grpo, dapo, ppo])
def test_a_reward_that_always_fails_ends_the_job_before_it_trains(make_spec, session, recipe):
    # Given up past half of them; two sandboxes may answer at once.
    message = "failed for [78] of 12 responses: ValueError: never"
    with pytest.raises(WorkerError, match=message) as caught:
        recipe.main(make_spec(reward="no_reward"))
    assert caught.value.code == "reward.failed"
    assert session.phases == [Phase.ROLLOUT]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("one_prompt", "asked for 4 texts and gave 1"),
        ("blank_prompts", "a prompt has no tokens"),
        ("nothing", "asked for 4 texts and gave None"),
        ("no_prompts", "asked for 4 texts and gave 0"),
        ("endless", "asked for 4 texts and gave more than 4"),
        ("one_text", "asked for 4 texts and gave 'abcd'"),
        ("number", "asked for 4 texts and gave 7 among them"),
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


def rewards_of(samples):
    """By `rare_reward`."""
    letters = CharTokenizer().symbols
    return [
        float(len(s.response.tokens)) if letters[s.response.prompt_tokens[0]] in "ab" else 1.0
        for s in samples
    ]


def groups(samples):
    found = {}
    for sample in samples:
        found.setdefault(sample.response.prompt_tokens, []).append(sample)
    return list(found.values())


def test_dapo_replaces_prompts_whose_responses_all_earned_the_same(make_spec, session):
    dapo.main(make_spec(reward="rare_reward", refills=9, iterations=1))
    rounds, (samples,) = session.engines.prompts, session.engines.batches
    assert len(rounds) > 1
    assert len(rounds[0]) == 12
    kept = 0
    for prompts_, responses in zip(rounds, session.engines.responses, strict=True):
        assert len(prompts_) == 3 * (4 - kept), "as many as are missing, no more"
        kept += sum(
            len(set(rewards_of(group))) > 1
            for group in groups([Sample(response=response) for response in responses])
        )
    assert kept == 4
    assert len(samples) == 12
    for group in groups(samples):
        assert len(set(rewards_of(group))) > 1
        assert sum(sample.advantage for sample in group) == pytest.approx(0, abs=1e-5)
    rolled, trained, _ = session.reported
    assert rolled["rounds"] == len(rounds)
    made = [response for found in session.engines.responses for response in found]
    assert rolled["tokens"] == sum(len(response.tokens) for response in made)
    assert trained["sequence_tokens"] == sum(3 + len(one.response.tokens) for one in samples)
    assert trained["sequence_tokens"] < rolled["tokens"] + rolled["prompt_tokens"]
    assert (trained["groups"], trained["groups_missing"]) == (4, 0)
    assert trained["groups_dropped"] == sum(map(len, rounds)) // 3 - 4


def test_dapo_samples_no_more_than_its_refills_and_counts_what_is_missing(make_spec, session):
    dapo.main(make_spec(reward="same_reward", refills=2, iterations=1))
    assert [len(prompts_) for prompts_ in session.engines.prompts] == [12, 12, 12]
    assert session.engines.batches == [()]
    trained = session.reported[1]
    assert (trained["groups"], trained["groups_dropped"], trained["groups_missing"]) == (0, 12, 4)
    assert trained["reward"] == 1.0


def test_dapo_without_refills_drops_what_teaches_nothing(make_spec, session):
    dapo.main(make_spec(reward="rare_reward", iterations=1))
    (samples,), (responses,) = session.engines.batches, session.engines.responses
    assert len(session.engines.prompts) == 1
    assert 0 < len(samples) < len(responses)
    assert session.reported[1]["groups_missing"] == 4 - len(samples) / 3


def test_dapo_gives_the_devices_back_when_the_rewards_take_longer_than_planned(make_spec, session):
    spec = make_spec(reward="slow_reward", refills=5, iterations=1, timeout_s=0.45)
    held = []

    def run(kind, function, *, park=None, wake=None):
        result = PlainSession.run(session, kind, function)
        if kind is Phase.ROLLOUT:
            held.append(result.rewards[-1].wait(0))
        return result

    session.run = run
    dapo.main(spec)
    assert held == [False], "the phase was over before the rewards were"
    assert [len(prompts_) for prompts_ in session.engines.prompts] == [12]
    (samples,) = session.engines.batches
    assert all(len(set(rewards_of(group))) > 1 for group in groups(samples))
    assert session.reported[1]["reward_failed"] == 0


def test_ppo_hands_on_what_each_response_earned(make_spec, session):
    ppo.main(make_spec(reward="shy_reward", iterations=1))
    (samples,), (responses,) = session.engines.batches, session.engines.responses
    kept = [response for response in responses if response.tokens[0] > 2]
    assert [sample.response for sample in samples] == kept
    letters = CharTokenizer().symbols
    for sample in samples:
        prompt, response = sample.response.prompt_tokens, sample.response.tokens
        expected = sum(token in prompt for token in response) / len(response)
        assert letters[response[0]] not in "abc"
        assert sample.reward == pytest.approx(expected)


class Played:
    """Parts whose environment gives the rewards with the responses: `rewards`, group by group."""

    def __init__(self, spec, rewards):
        self.spec, self.rewards, self.asked = spec, list(rewards), []

    def sample(self, drawn):
        groups_ = [self.rewards.pop(0) for _ in range(len(drawn.tokens) // 3)]
        self.asked.append(len(groups_))
        response = Response(
            prompt_tokens=(1,), tokens=(2,), logprobs=(-1.0,), weight_version=0, finish_reason=""
        )
        earned = tuple(value for group in groups_ for value in group)
        return parts.Rollout(
            drawn=drawn,
            responses=(response,) * len(earned),
            rewards=earned,
            metrics={"tokens": 99.0, "turns": 4.0 / len(groups_), "ended_turns": 2.0},
        )

    def score(self, found):
        return found.rewards


def test_dapo_waits_for_no_rewards_that_came_with_the_episodes(make_spec):
    spec = make_spec(refills=3)
    spec = dataclasses.replace(spec, environment=EnvironmentSpec(function="lake.py:Lake"))
    same, other = (1.0, 1.0, None), (0.0, 1.0, None)
    job = Played(spec, [same, other, same, same, same, other, other, other])
    drawn = prompts.Drawn(texts=("",) * 12, tokens=((1,),) * 12, seeds=(0,) * 12)
    found = dapo.sample_rounds(job, [drawn] * 4)
    assert job.asked == [4, 3, 1]
    assert found.metrics["tokens"] == 8 * 3
    assert found.metrics["ended_turns"] == 6.0
    assert found.metrics["turns"] == pytest.approx(12.0 / 8)
    batch = dapo.batch_of(spec, found)
    assert len(batch.samples) == 4 * 2, "what failed is in no group"
    assert batch.metrics["groups_missing"] == 0
