"""Proof, at submit, that a user's function can be imported, and an environment be played."""

from __future__ import annotations

from pathlib import Path

from rmux.errors import SpecError, WorkerError
from rmux.run.sandbox.environments import EnvironmentPool
from rmux.run.sandbox.host import Outcome
from rmux.run.sandbox.pool import RewardPool


def check_function(function: str, *, python: str | None = None, timeout_s: float = 30.0) -> None:
    """Import 'file.py:name' in a process of its own, with the interpreter the job will use.

    SpecError with the last line of the traceback, and when it takes over `timeout_s`.
    """
    _check_reference(function)
    with RewardPool(
        function, timeout_s=timeout_s, num_processes=1, python=python, import_s=timeout_s
    ) as pool:
        try:
            pool.start()
        except WorkerError as error:
            raise SpecError(error.message, details=error.details) from error
        except OSError as error:
            raise SpecError(f"cannot run {python}: {error.strerror}") from error


def check_environment(function: str, *, python: str | None = None, timeout_s: float = 30.0) -> str:
    """Make an environment with 'file.py:name' and reset it, in a process of its own; returns the
    text of its first observation.

    SpecError with what is wrong, and when import or reset take over `timeout_s`.
    """
    _check_reference(function)
    with EnvironmentPool(
        function, timeout_s=timeout_s, num_processes=1, python=python, import_s=timeout_s
    ) as pool:
        try:
            pool.reset(0, seed=0)
            move = pool.next(3 * timeout_s)
        except WorkerError as error:
            raise SpecError(error.message, details=error.details) from error
    if move is None or move.outcome is not Outcome.OK:
        reason = f"it took over {timeout_s:g} s" if move is None else move.reason
        raise SpecError(
            f"{function} makes no environment that can be played: {reason}",
            hint="man 7 rmux-environment",
        )
    return move.text


def _check_reference(function: str) -> None:
    path, _, name = function.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise SpecError(f"{function!r} does not name a function", hint="write it as 'file.py:name'")
    if not Path(path).is_file():
        raise SpecError(f"there is no file {path}")
