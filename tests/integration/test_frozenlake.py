"""The environment of the FrozenLake example, in its sandbox."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from rmux.run.sandbox.check import check_environment
from rmux.run.sandbox.environments import EnvironmentPool
from rmux.run.sandbox.host import Move, Outcome
from rmux.spec import load_spec

pytest.importorskip("gymnasium")

FOLDER = Path(__file__).parents[2] / "examples" / "frozenlake"
LAKE = f"{FOLDER / 'environment.py'}:FrozenLake"

SCRIPTS = ("make_model", "environment")


def walk(pool: EnvironmentPool, arrows: str) -> Move:
    """The last of these moves; they are made until one ends the episode."""
    move = None
    for arrow in arrows:
        pool.step(0, arrow)
        move = pool.next(20.0)
        assert move is not None
        if move.outcome is not Outcome.OK or move.terminated:
            break
    assert move is not None
    return move


def test_the_goal_earns_one_a_hole_nothing_and_a_letter_is_no_arrow() -> None:
    check_environment(LAKE)
    with EnvironmentPool(LAKE, timeout_s=10.0, num_processes=1) as pool:
        starts = set()
        for seed in range(12):
            pool.reset(0, seed=seed)
            first = pool.next(20.0)
            assert first is not None
            starts.add(first.text)
            if first.text == "a":
                goal = walk(pool, "vv>>v>")
                assert (goal.text, goal.reward, goal.terminated) == ("p", 1.0, True)
        assert len(starts) > 3
        assert "a" in starts
        assert not starts & set("fhlmp"), "holes and the goal"
        pool.reset(0, seed=0)
        assert pool.next(20.0) is not None
        assert walk(pool, "a").outcome is Outcome.ACTION


def test_the_job_of_the_example_has_tokens_for_all_that_is_said(tmp_path: Path) -> None:
    make_model, environment = (runpy.run_path(str(FOLDER / f"{name}.py")) for name in SCRIPTS)
    assert make_model["SYMBOLS"] == environment["FIELDS"] + environment["ARROWS"]
    for name in ("job.toml", "environment.py"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "models" / "lake").mkdir(parents=True)
    spec = load_spec(tmp_path / "job.toml")
    # An arrow per turn and a field between two.
    assert spec.rollout.max_tokens >= 2 * spec.environment.max_turns - 1
    assert (spec.rollout.max_prompt_tokens, spec.environment.turn_tokens) == (1, 1)
