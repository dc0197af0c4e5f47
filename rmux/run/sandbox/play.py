"""The environments of one sandbox process, one per episode: rmux-environment(7), seen from inside.

Needs the standard library only. What the model got wrong and what the environment got wrong are
told apart: the first is scored, the second fails the episode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from rmux.run.sandbox.values import number_of, reason_of_failure, shown, text_of, truth_of


class Environments:
    """`make` is the user's class or factory; one that an episode left is used by the next."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._playing: dict[int, Any] = {}
        self._free: list[Any] = []

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one request of the pool.

        {"text"} after a reset; {"text", "reward", "terminated", "truncated"} after a step;
        {"action": reason} for a text that is no action, {"error": reason} when the environment is
        at fault.
        """
        episode = int(request["episode"])
        try:
            if request["op"] == "reset":
                return self._reset(episode, seed=int(request["seed"]))
            if request["op"] == "step":
                return self._step(episode, str(request["text"]))
            self._leave(episode)
            return {}
        except BaseException:  # noqa: BLE001 - user code may raise anything, SystemExit too
            self._drop(self._playing.pop(episode, None))
            return {"error": reason_of_failure()}

    def _reset(self, episode: int, *, seed: int) -> dict[str, Any]:
        self._leave(episode)
        environment = self._free.pop() if self._free else _checked(self._make())
        self._playing[episode] = environment
        found = environment.reset(seed=seed)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(f"reset returned {shown(found)}, not (observation, info)")
        return {"text": _text(environment, found[0], "reset")}

    def _step(self, episode: int, text: str) -> dict[str, Any]:
        environment = self._playing[episode]
        try:
            action = _action(environment, text)
        except (ValueError, LookupError):
            return {"action": reason_of_failure()}
        found = environment.step(action)
        if not isinstance(found, tuple) or len(found) != 5:
            raise TypeError(
                f"step returned {shown(found)}, "
                "not (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, _ = found
        ends = truth_of(terminated), truth_of(truncated)
        if None in ends:
            raise TypeError(
                f"step returned {shown(terminated)} and {shown(truncated)} as terminated and "
                "truncated"
            )
        try:
            earned = number_of(reward)
        except ValueError as error:
            raise TypeError(f"the reward of step: {error}") from None
        return {
            "text": _text(environment, observation, "step"),
            "reward": earned,
            "terminated": ends[0],
            "truncated": ends[1],
        }

    def _leave(self, episode: int) -> None:
        environment = self._playing.pop(episode, None)
        if environment is not None:
            self._free.append(environment)

    def _drop(self, environment: Any) -> None:
        close = getattr(environment, "close", None)
        if callable(close):
            with contextlib.suppress(Exception):
                close()


def _checked(environment: Any) -> Any:
    """TypeError for what cannot be played at all."""
    for name in ("reset", "step"):
        if not callable(getattr(environment, name, None)):
            raise TypeError(f"{shown(environment)} has no method {name}")
    for name in ("render_text", "parse_action"):
        if not callable(getattr(environment, name, str)):
            raise TypeError(f"{name} of {shown(environment)} is not a method")
    actions = getattr(environment, "action_space", None)
    if actions is not None and not callable(getattr(actions, "contains", None)):
        raise TypeError(f"the action_space is {shown(actions)}, which has no contains(action)")
    return environment


def _text(environment: Any, observation: Any, call: str) -> str:
    render = getattr(environment, "render_text", None)
    try:
        return text_of(observation if render is None else render(observation))
    except ValueError as error:
        source = f"the observation of {call}" if render is None else "render_text"
        raise TypeError(f"{source}: {error}") from None


def _action(environment: Any, text: str) -> Any:
    """ValueError or LookupError when the text is no action."""
    parse = getattr(environment, "parse_action", None)
    action = text if parse is None else parse(text)
    if action is None:
        raise ValueError(f"{text[:60]!r} is no action")
    actions = getattr(environment, "action_space", None)
    if actions is not None and not actions.contains(action):
        raise ValueError(f"{str(action)[:60]!r} is not in {str(actions)[:60]}")
    return action
