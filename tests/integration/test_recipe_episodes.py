"""The recipes on environments in real sandboxes, with engines that sample letters at random."""

import dataclasses
import random

import pytest

from rmux.errors import WorkerError
from rmux.job import EnvironmentSpec, JobSpec, Phase, RolloutSpec
from rmux.run.driver import shim
from rmux.run.driver.engines import Response, SyncReport, TrainReport
from rmux.run.driver.recipes import dapo, grpo, ppo
from rmux.run.driver.session import numbers_of
from rmux.run.driver.tokenizer import CharTokenizer

SOURCE = '''
import random


class Guess:
    """Says which letter earns, for three turns; a "z" breaks it, capitals are no actions."""

    def reset(self, *, seed):
        self.rng, self.turn = random.Random(seed), 0
        return self.next(), {}

    def next(self):
        self.letter = self.rng.choice("ab")
        return self.letter + "."

    def parse_action(self, text):
        if text.isupper():
            raise ValueError("no capitals")
        return text

    def step(self, action):
        if action == "z":
            raise RuntimeError("no z")
        self.turn += 1
        return self.next(), float(action == self.letter), self.turn == 3, False, {}


class Never:
    def reset(self, *, seed):
        raise RuntimeError("no game")

    def step(self, action):
        raise RuntimeError("no game")
'''


class LetterEngines:
    """Fleet, stream and trainer at once; samples one of `letters` per turn, from the seed alone."""

    def __init__(self, letters="ab"):
        self.tokens = CharTokenizer().encode(letters)
        self.version, self.waiting, self.batches, self.asked = 0, [], [], []

    def fleet(self):
        return self

    def trainer(self):
        return self

    def stream(self, *, on_progress=None):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.waiting.clear()

    def submit(self, key, prompt, *, sampling, seed):
        self.waiting.append((key, tuple(prompt), seed))
        self.asked.append((tuple(prompt), seed))

    def next(self, timeout_s):
        if not self.waiting:
            return None
        key, prompt, seed = self.waiting.pop(0)
        return key, Response(
            prompt_tokens=prompt,
            tokens=(random.Random(seed).choice(self.tokens),),
            logprobs=(-1.0,),
            weight_version=self.version,
            finish_reason="length",
        )

    def step(self, samples):
        self.batches.append(samples)
        return TrainReport(steps=1, max_logprob_gap=0.0, metrics={})

    def publish(self, fleet):
        self.version += 1
        return SyncReport(version=self.version, sent_bytes=1, seconds=0.0, checksum="c")


class PlainSession:
    """Runs each phase at once and keeps what it would report."""

    def __init__(self, engines):
        self.engines, self.phases, self.reported = engines, [], []

    def run(self, kind, function, *, park=None, wake=None):
        result = function()
        self.phases.append(kind)
        self.reported.append(numbers_of(result))
        return result

    def progress(self, numbers):
        pass


@pytest.fixture
def run(tmp_path):
    (tmp_path / "guess.py").write_text(SOURCE)
    CharTokenizer().save(tmp_path)

    def go(recipe, *, letters="ab", name="Guess", iterations=1, **changes):
        session = PlainSession(LetterEngines(letters))
        rollout = RolloutSpec(
            prompts=4, samples_per_prompt=3, max_prompt_tokens=4, max_tokens=9, refills=0
        )
        spec = JobSpec(
            name="guess",
            seed=4,
            iterations=iterations,
            model_path=str(tmp_path),
            rollout=dataclasses.replace(rollout, **changes),
            environment=EnvironmentSpec(
                function=f"{tmp_path}/guess.py:{name}", turn_tokens=1, timeout_s=5.0
            ),
        )
        shim.activate(session)
        try:
            recipe.main(spec)
        finally:
            shim.activate(None)
        return session

    return go


@pytest.mark.parametrize("recipe", [grpo, dapo, ppo])
def test_each_recipe_trains_on_whole_episodes_and_what_they_earned(run, recipe):
    session = run(recipe, iterations=2)
    assert session.phases == [Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC] * 2
    trained = session.reported[1]
    assert 0.5 < trained["reward"] < 2.5
    assert trained["reward_failed"] == 0
    for sample in session.engines.batches[0]:
        response = sample.response
        # A letter, then what the environment said, and so on; it has the last word, unheard.
        assert response.mask == (True, False, False, True, False, False, True)
        assert len(response.prompt_tokens) == 2


def test_the_episodes_of_one_prompt_meet_the_same_environment(run):
    session = run(grpo)
    samples, text = session.engines.batches[0], CharTokenizer().decode
    for start in range(0, 12, 3):
        told = {text(sample.response.prompt_tokens) for sample in samples[start : start + 3]}
        later = {text(sample.response.tokens[1:3]) for sample in samples[start : start + 3]}
        assert len(told) == len(later) == 1
    assert len({sample.response.tokens for sample in samples}) > 4
    seeds = [seed for _, seed in session.engines.asked]
    assert len(set(seeds)) == 36


def test_a_second_run_plays_the_same_games(run):
    whole, again = run(grpo).engines.batches, run(grpo).engines.batches
    assert whole == again


def test_numbers_of_the_rollout_say_how_episodes_ended(run):
    rolled = run(grpo, letters="aA").reported[0]
    assert rolled["ended_terminated"] + rolled["ended_action"] == 12
    assert rolled["ended_action"] > 2
    assert 1 <= rolled["turns"] < 3


def test_a_failed_environment_takes_its_episode_out_of_the_group_and_is_counted(run):
    session = run(grpo, letters="aaaaabz")
    failed = session.reported[0]["ended_failed"]
    assert 0 < failed < 6
    assert len(session.engines.batches[0]) == 12 - failed
    assert session.reported[1]["reward_failed"] == failed


def test_an_environment_that_always_fails_ends_the_job_with_the_reason(run):
    with pytest.raises(WorkerError, match="in 7 of 12 episodes: RuntimeError: no game") as caught:
        run(grpo, name="Never")
    assert caught.value.code == "environment.failed"
