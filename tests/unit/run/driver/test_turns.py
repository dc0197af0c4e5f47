"""Rollouts of several turns on a fleet that samples letters at random and environments in line."""

import random
from collections import deque

import pytest

from rmux.errors import StaleWeightsError, WorkerError
from rmux.run.driver import turns
from rmux.run.driver.engines import Exactness, Response, Sampling
from rmux.run.driver.episode import End, Episode, Limits
from rmux.run.driver.tokenizer import CharTokenizer
from rmux.run.sandbox.host import Move, Outcome

TOKENIZER = CharTokenizer("abcdefgh.01")
SAMPLING = Sampling(temperature=0.7, max_tokens=99)


class LetterFleet:
    """Fleet and stream at once: the last request in is the first one out."""

    def __init__(self):
        self.asked, self.waiting = [], []
        self.version, self.exactness = 3, Exactness.EXACT
        self.on_progress = None

    def stream(self, *, on_progress=None):
        self.on_progress = on_progress
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.waiting.clear()

    def submit(self, key, prompt, *, sampling, seed):
        self.asked.append((key, tuple(prompt), sampling, seed))
        self.waiting.append(self.asked[-1])

    def next(self, timeout_s):
        if not self.waiting:
            return None
        key, prompt, sampling, seed = self.waiting.pop()
        rng = random.Random(seed)
        tokens = tuple(rng.randrange(8) for _ in range(min(2, sampling.max_tokens)))
        if self.on_progress is not None:
            self.on_progress({"responses_done": 1, "responses": 1, "tokens": 7})
        return key, Response(
            prompt_tokens=prompt,
            tokens=tokens,
            logprobs=tuple(-0.1 - token for token in tokens),
            weight_version=self.version,
            finish_reason="stop",
            exactness=self.exactness,
        )


class Scripted:
    """`answer(episode, turn, text)` gives what a step moves; None is a call that never returns."""

    def __init__(self, answer, first="start"):
        self.answer, self.first = answer, first
        self.moves, self.seeds, self.said, self.ended = deque(), {}, {}, []

    def reset(self, episode, *, seed):
        self.seeds[episode], self.said[episode] = seed, []
        self.moves.append(Move(episode=episode, text=self.first))

    def step(self, episode, text):
        self.said[episode].append(text)
        move = self.answer(episode, len(self.said[episode]), text)
        if move is not None:
            self.moves.append(move)

    def end(self, episode):
        self.ended.append(episode)

    def next(self, timeout_s):
        return self.moves.popleft() if self.moves else None


def goes_on(episode, turn, text):
    return Move(episode=episode, text=f".{turn % 2}", reward=0.5, terminated=turn == 3)


def episodes(count):
    return [Episode(reset_seed=100 + key // 2, seed=200 + key) for key in range(count)]


def play(answer=goes_on, *, count=4, fleet=None, first="ab.", limits=None, **options):
    fleet, environments = fleet or LetterFleet(), Scripted(answer, first)
    found = turns.play(
        fleet,
        episodes(count),
        environments=environments,
        tokenizer=TOKENIZER,
        sampling=SAMPLING,
        limits=limits or Limits(max_turns=5, turn_tokens=2, max_prompt_tokens=6, max_tokens=40),
        idle_s=options.pop("idle_s", 5.0),
        **options,
    )
    return found, fleet, environments


def test_each_turn_is_asked_with_every_token_so_far_as_it_was_sampled():
    found, fleet, environments = play()
    for key, one in enumerate(found):
        prompts = [prompt for asked, prompt, _, _ in fleet.asked if asked == key]
        whole = one.response.prompt_tokens + one.response.tokens
        assert len(prompts) == 3
        assert prompts[0] == one.response.prompt_tokens == TOKENIZER.encode("ab.")
        assert all(whole[: len(prompt)] == prompt for prompt in prompts)
        text = TOKENIZER.decode(one.response.tokens)
        first, second, third = environments.said[key]
        assert text == f"{first}.1{second}.0{third}"


def test_what_the_environment_said_is_masked_and_has_no_log_probability():
    found, _, _ = play()
    for one in found:
        response = one.response
        assert response.mask == (True, True, False, False, True, True, False, False, True, True)
        assert response.num_sampled == 6
        for token, logprob, sampled in zip(
            response.tokens, response.logprobs, response.mask, strict=True
        ):
            assert logprob == (-0.1 - token if sampled else 0.0)
        assert (response.weight_version, response.finish_reason) == (3, "stop")
        assert (one.reward, one.turns, one.end) == (1.5, 3, End.TERMINATED)


def test_seeds_belong_to_episode_and_turn_and_not_to_the_order_of_events():
    found, fleet, environments = play()
    seeds = [seed for _, _, _, seed in fleet.asked]
    assert len(set(seeds)) == len(seeds) == 12
    assert environments.seeds == {0: 100, 1: 100, 2: 101, 3: 101}
    alone = turns.play(
        LetterFleet(),
        episodes(4)[2:3],
        environments=Scripted(goes_on, "ab."),
        tokenizer=TOKENIZER,
        sampling=SAMPLING,
        limits=Limits(max_turns=5, turn_tokens=2, max_prompt_tokens=6, max_tokens=40),
        idle_s=5.0,
    )
    assert alone == found[2:3]


def test_turns_and_tokens_are_bounded():
    never = lambda episode, turn, text: Move(episode=episode, text=".", reward=1.0)  # noqa: E731
    found, _, _ = play(never)
    assert {(one.end, one.turns, one.reward) for one in found} == {(End.TURNS, 5, 5.0)}
    # 2 + 1 + 2 + 1 leave one token of 7 for the third turn; then nothing more fits.
    tight = Limits(max_turns=5, turn_tokens=2, max_prompt_tokens=6, max_tokens=7)
    found, fleet, _ = play(never, limits=tight)
    assert {(one.end, one.turns, len(one.response.tokens)) for one in found} == {(End.LENGTH, 3, 7)}
    assert {one.response.finish_reason for one in found} == {"length"}
    assert [sampling.max_tokens for key, _, sampling, _ in fleet.asked if key == 0] == [2, 2, 1]
    assert {sampling.temperature for _, _, sampling, _ in fleet.asked} == {0.7}


def test_a_text_that_is_no_action_ends_the_episode_with_what_it_earned():
    def answer(episode, turn, text):
        if turn == 2:
            return Move(episode=episode, outcome=Outcome.ACTION, reason="no action")
        return goes_on(episode, turn, text)

    found, _, _ = play(answer)
    assert {(one.end, one.reward, one.reason) for one in found} == {(End.ACTION, 0.5, "no action")}


def fails_first(episode, turn, text):
    if episode == 0 and turn == 2:
        return Move(episode=0, outcome=Outcome.FAILED, reason="it took over 1 s")
    return goes_on(episode, turn, text)


def test_a_failed_environment_fails_its_episode_alone():
    found, _, environments = play(fails_first)
    assert (found[0].end, found[0].reward, found[0].reason) == (
        End.FAILED,
        None,
        "it took over 1 s",
    )
    assert len(found[0].response.tokens) == 6
    assert [one.end for one in found[1:]] == [End.TERMINATED] * 3
    assert set(environments.ended) == {0, 1, 2, 3}
    numbers = turns.describe(found)
    assert (numbers["ended_failed"], numbers["ended_terminated"]) == (1, 3)
    assert numbers["turns"] == (2 + 9) / 4
    assert numbers["observation_tokens"] == 2 + 3 * 4


def test_beyond_the_stated_share_of_failures_the_rollout_ends_with_the_reason():
    def answer(episode, turn, text):
        return Move(episode=episode, outcome=Outcome.FAILED, reason="ZeroDivisionError")

    with pytest.raises(WorkerError, match="in 3 of 8 episodes: ZeroDivisionError") as caught:
        play(answer, count=8, max_failed=0.25)
    assert caught.value.code == "environment.failed"
    found, _, _ = play(fails_first, max_failed=0.25)
    assert found[0].end is End.FAILED


def test_environments_cannot_keep_idle_devices_for_ever():
    def answer(episode, turn, text):
        return None if episode < 2 else goes_on(episode, turn, text)

    found, _, environments = play(answer, idle_s=0.0)
    assert [one.end for one in found] == [End.FAILED] * 2 + [End.TERMINATED] * 2
    assert found[0].reason == "the environments kept the devices idle for too long"
    assert set(environments.ended) == {0, 1, 2, 3}


def test_what_made_the_others_wait_is_the_reason():
    def answer(episode, turn, text):
        if episode == 0:
            return Move(episode=0, outcome=Outcome.FAILED, reason="it took over 1 s")
        return None

    with pytest.raises(WorkerError, match="in 4 of 4 episodes: it took over 1 s"):
        play(answer, idle_s=0.0, max_failed=0.5)


def test_the_time_that_devices_are_kept_idle_is_added_up(monkeypatch):
    """Each answer takes a second of it; all sampling takes none."""
    now_s = [100.0]

    class Slow(Scripted):
        def next(self, timeout_s):
            if not self.moves:
                return None
            now_s[0] += min(1.0, timeout_s)
            return self.moves.popleft() if timeout_s >= 1.0 else None

    monkeypatch.setattr(turns.time, "monotonic", lambda: now_s[0])
    environments = Slow(goes_on, "ab.")
    options = {
        "environments": environments,
        "tokenizer": TOKENIZER,
        "sampling": SAMPLING,
        "limits": Limits(max_turns=5, turn_tokens=2, max_prompt_tokens=6, max_tokens=40),
    }
    (found,) = turns.play(LetterFleet(), episodes(1), idle_s=4.0, **options)
    assert found.end is End.TERMINATED
    (found,) = turns.play(LetterFleet(), episodes(1), idle_s=2.9, **options)
    assert (found.end, found.turns) == (End.FAILED, 2)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("abcdefg", "has 7 tokens; 1 to rollout.max_prompt_tokens, 6, are allowed"),
        ("", "has 0 tokens"),
        ("?", "'?' is not among the 11 symbols"),
    ],
)
def test_a_first_observation_that_is_no_prompt_fails_before_anything_is_sampled(first, reason):
    found, fleet, _ = play(first=first)
    assert all(one.end is End.FAILED and reason in one.reason for one in found)
    assert fleet.asked == []


def test_an_episode_is_of_one_weight_version():
    fleet = LetterFleet()

    def answer(episode, turn, text):
        fleet.version = 3 + (turn >= 2)
        return goes_on(episode, turn, text)

    with pytest.raises(StaleWeightsError, match="began under weight version 3") as caught:
        play(answer, count=1, fleet=fleet)
    assert caught.value.details == {"began": 3, "version": 4}


def test_an_episode_is_as_exact_as_its_least_exact_turn():
    fleet = LetterFleet()

    def answer(episode, turn, text):
        fleet.exactness = Exactness.SAME_DISTRIBUTION if turn == 1 else Exactness.EXACT
        return goes_on(episode, turn, text)

    found, _, _ = play(answer, count=1, fleet=fleet)
    assert found[0].response.exactness is Exactness.SAME_DISTRIBUTION


def test_progress_counts_episodes_and_not_turns():
    seen = []
    play(on_progress=seen.append)
    assert {numbers["responses"] for numbers in seen} == {4}
    assert seen[0] == {"responses_done": 0, "responses": 4, "tokens": 7}
    assert max(numbers["responses_done"] for numbers in seen) == 3


def test_rewards_that_add_up_beyond_what_can_be_trained_on_fail_their_episode():
    def answer(episode, turn, text):
        reward = 0.75e18 if episode == 1 else 0.5
        return Move(episode=episode, text=".", reward=reward, terminated=turn == 3)

    found, _, _ = play(answer)
    assert [one.end for one in found].count(End.FAILED) == 1
    assert (found[1].end, found[1].reward) == (End.FAILED, None)
    assert "1.5e+18" in found[1].reason
