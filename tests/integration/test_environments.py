"""Environments of many episodes in sandbox processes: turns, faults, lost processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmux.cli import preflight
from rmux.errors import SpecError, WorkerError
from rmux.job import EnvironmentSpec, JobSpec, RolloutSpec
from rmux.run.driver.tokenizer import CharTokenizer
from rmux.run.sandbox.check import check_environment
from rmux.run.sandbox.environments import EnvironmentPool
from rmux.run.sandbox.host import Move, Outcome

SOURCE = '''
import os, random, subprocess, sys, time


class Actions:
    def __contains__(self, action): raise TypeError
    def contains(self, action): return action in range(10)
    def __str__(self): return "Digits(10)"


class Adding:
    """Adds what it is told to a number that its seed decides; 9 breaks it in several ways."""

    action_space = Actions()

    def reset(self, *, seed):
        self.rng = random.Random(seed)
        self.total = self.rng.randrange(100)
        return self.total, {}

    def render_text(self, observation):
        return f"total {observation}"

    def parse_action(self, text):
        if text == "two":
            return 22
        return int(text)

    def step(self, action):
        print("noise", '{"text": "99"}', flush=True)
        os.write(1, b'{"text": "98"}\\n')
        self.total += action + self.rng.randrange(3)
        return self.total, float(action), action == 7, action == 8, {}


class Stuck(Adding):
    def step(self, action):
        if action == 9:
            time.sleep(600)
        return super().step(action)


class Dying(Adding):
    def step(self, action):
        if action == 9:
            os._exit(7)
        return super().step(action)


class Fickle(Dying):
    """Does not follow its seed."""

    def reset(self, *, seed):
        super().reset(seed=seed)
        return random.SystemRandom().randrange(10**9), {}


class Broken:
    answers = {}

    def __init__(self, reset=("now", {}), step=("then", 1.0, False, False, {})):
        self.answers = {"reset": reset, "step": step}

    def reset(self, *, seed):
        return self.answers["reset"]

    def step(self, action):
        return self.answers["step"]


def no_reset(): return object()
def bare_observation(): return Broken(reset="now")
def number_observation(): return Broken(reset=(3, {}))
def huge_observation(): return Broken(reset=("x" * (2**20 + 1), {}))
def short_step(): return Broken(step=("then", 1.0, False, {}))
def no_truth(): return Broken(step=("then", 1.0, "no", False, {}))
def nan_reward(): return Broken(step=("then", float("nan"), False, False, {}))
def no_reward(): return Broken(step=("then", None, False, False, {}))
def raising(): raise RuntimeError("no display")
def strange_actions():
    made = Broken()
    made.action_space = ["left", "right"]
    return made
'''


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "adding.py").write_text(SOURCE)
    return str(tmp_path / "adding.py")


def take(pool: EnvironmentPool, count: int) -> dict[int, Move]:
    """The next answers, by episode."""
    found: dict[int, Move] = {}
    while len(found) < count:
        move = pool.next(10.0)
        assert move is not None
        assert move.episode not in found
        found[move.episode] = move
    assert pool.next(0) is None
    return found


def test_episodes_go_on_side_by_side_whatever_they_print(source: str) -> None:
    with EnvironmentPool(f"{source}:Adding", timeout_s=5.0) as pool:
        pool.start()
        for episode in range(20):
            pool.reset(episode, seed=episode // 2)
        first = take(pool, 20)
        assert all(move.text.startswith("total ") for move in first.values())
        assert first[0].text == first[1].text
        assert len({move.text for move in first.values()}) > 5
        for episode in range(20):
            pool.step(episode, "3")
        second = take(pool, 20)
        for episode, move in second.items():
            rise = int(move.text.split()[1]) - int(first[episode].text.split()[1])
            assert 3 <= rise <= 5
            assert (move.reward, move.terminated, move.truncated) == (3.0, False, False)
        pool.step(0, "7")
        pool.step(1, "8")
        ends = take(pool, 2)
        assert (ends[0].terminated, ends[0].truncated) == (True, False)
        assert (ends[1].terminated, ends[1].truncated) == (False, True)


def test_a_text_that_is_no_action_is_the_models_fault_and_the_episode_can_go_on(
    source: str,
) -> None:
    with EnvironmentPool(f"{source}:Adding", timeout_s=5.0, num_processes=1) as pool:
        pool.reset(0, seed=1)
        take(pool, 1)
        for text, reason in (("what", "invalid literal"), ("two", "'22' is not in Digits(10)")):
            pool.step(0, text)
            move = take(pool, 1)[0]
            assert move.outcome is Outcome.ACTION
            assert reason in move.reason
        pool.step(0, "4")
        assert take(pool, 1)[0].reward == 4.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Stuck", "it took over 0.3 s"), ("Dying", "its process exited with status 7")],
)
def test_a_lost_process_fails_the_episode_at_fault_and_the_others_go_on(
    source: str, name: str, reason: str
) -> None:
    """Against a pool in which nothing is lost."""

    def texts(pool: EnvironmentPool, steps: list[str], lost: str) -> list[list[str]]:
        for episode in range(4):
            pool.reset(episode, seed=episode)
        seen = [take(pool, 4)]
        for number, action in enumerate(steps):
            for episode in range(4):
                pool.step(episode, lost if (episode, number) == (1, 1) else action)
            alive = 4 if number < 2 or lost != "9" else 3
            seen.append(take(pool, 4 if number < 2 else alive))
            if number == 1 and lost == "9":
                assert seen[-1][1] == Move(episode=1, outcome=Outcome.FAILED, reason=reason)
        return [[found[episode].text for found in seen] for episode in (0, 2, 3)]

    steps = ["1", "2", "3", "4"]
    with (
        EnvironmentPool(f"{source}:{name}", timeout_s=0.3, num_processes=1) as pool,
        EnvironmentPool(f"{source}:Adding", timeout_s=5.0, num_processes=1) as whole,
    ):
        assert texts(pool, steps, "9") == texts(whole, steps, "2")


def test_an_environment_that_does_not_repeat_itself_is_not_trusted(source: str) -> None:
    with EnvironmentPool(f"{source}:Fickle", timeout_s=5.0, num_processes=1) as pool:
        for episode in range(2):
            pool.reset(episode, seed=0)
        take(pool, 2)
        pool.step(0, "9")
        found = take(pool, 2)
        assert found[0].reason == "its process exited with status 7"
        assert found[1].outcome is Outcome.FAILED
        assert found[1].reason == "it did not repeat itself after its process was lost"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("short_step", "not (observation, reward, terminated, truncated, info)"),
        ("no_truth", "step returned 'no' of type str and False of type bool"),
        ("nan_reward", "the reward of step: nan is not a finite number"),
        ("no_reward", "the reward of step: None is not a number"),
    ],
)
def test_a_wrong_step_fails_its_episode_with_the_reason(
    source: str, name: str, reason: str
) -> None:
    with EnvironmentPool(f"{source}:{name}", timeout_s=5.0, num_processes=1) as pool:
        pool.reset(0, seed=0)
        take(pool, 1)
        pool.step(0, "go")
        move = take(pool, 1)[0]
        assert move.outcome is Outcome.FAILED
        assert reason in move.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_reset", "has no method reset"),
        ("bare_observation", "reset returned 'now' of type str, not (observation, info)"),
        ("number_observation", "the observation of reset: 3 of type int is not text"),
        ("huge_observation", "a text of 1048577 characters"),
        ("raising", "RuntimeError: no display"),
        ("strange_actions", "the action_space is ['left', 'right'] of type list, which has no"),
        ("nothing", "has no attribute 'nothing'"),
    ],
)
def test_what_is_wrong_with_every_episode_is_told_at_submit(
    source: str, name: str, reason: str
) -> None:
    with pytest.raises(SpecError) as caught:
        check_environment(f"{source}:{name}")
    assert reason in caught.value.message


def test_a_job_is_refused_for_its_environment_before_it_is_stored(source: str) -> None:
    def check(name: str) -> None:
        environment = EnvironmentSpec(function=f"{source}:{name}")
        spec = JobSpec(name="adding", script=source, recipe=None, environment=environment)
        preflight.check(spec, hardware="cpu")

    check("Adding")
    with pytest.raises(SpecError, match="no display"):
        check("raising")


def test_an_environment_that_can_be_played_passes_with_its_first_words(source: str) -> None:
    assert check_environment(f"{source}:Adding")


def test_a_first_observation_that_cannot_be_a_prompt_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    CharTokenizer().save(model)
    monkeypatch.setattr("rmux.profile.footprint.load_shape", lambda path: None)
    monkeypatch.setattr(preflight, "check_engines", lambda spec, hardware: None)
    for text in ("", "x" * 9):
        monkeypatch.setattr(
            "rmux.run.sandbox.check.check_environment", lambda *_, text=text, **__: text
        )
        spec = JobSpec(
            name="adding",
            model_path=str(model),
            rollout=RolloutSpec(max_prompt_tokens=8),
            environment=EnvironmentSpec(function=f"{source}:Adding"),
        )
        with pytest.raises(SpecError, match=f"has {len(text)} tokens"):
            preflight.check(spec, hardware="cpu")


def test_an_import_that_fails_ends_the_wait(source: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import no_such_module\n")
    with EnvironmentPool(f"{tmp_path}/bad.py:Lake", timeout_s=5.0) as pool:
        with pytest.raises(WorkerError, match="No module named 'no_such_module'") as caught:
            pool.start()
        assert caught.value.code == "environment.import"
        with pytest.raises(WorkerError, match="no_such_module"):
            pool.next(10.0)


def test_an_episode_that_was_given_up_frees_its_environment(source: str) -> None:
    with EnvironmentPool(f"{source}:Stuck", timeout_s=0.3, num_processes=1) as pool:
        pool.reset(0, seed=0)
        take(pool, 1)
        pool.step(0, "9")
        pool.end(0)
        began_s = time.monotonic()
        pool.reset(0, seed=5)
        move = pool.next(10.0)
        assert move is not None
        assert move.outcome is Outcome.OK
        assert time.monotonic() - began_s < 10.0


def test_an_answer_to_an_episode_that_was_given_up_is_not_the_next_ones(source: str) -> None:
    with EnvironmentPool(f"{source}:Adding", timeout_s=5.0, num_processes=1) as pool:
        pool.reset(0, seed=0)
        pool.reset(1, seed=0)
        take(pool, 2)
        pool.step(0, "3")
        pool.step(1, "5")
        while pool._moves.qsize() < 2:
            time.sleep(0.001)
        pool.end(0)
        pool.reset(0, seed=0)
        found = take(pool, 2)
        assert (found[0].reward, found[1].reward) == (0.0, 5.0)
