"""Proof, at submit, that a user's function can be imported."""

from __future__ import annotations

from pathlib import Path

from rmux.errors import SpecError, WorkerError
from rmux.run.sandbox.pool import RewardPool


def check_function(function: str, *, python: str | None = None, timeout_s: float = 30.0) -> None:
    """Import 'file.py:name' in a process of its own, with the interpreter the job will use.

    SpecError with the last line of the traceback, and when it takes over `timeout_s`.
    """
    path, _, name = function.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise SpecError(f"{function!r} does not name a function", hint="write it as 'file.py:name'")
    if not Path(path).is_file():
        raise SpecError(f"there is no file {path}")
    with RewardPool(
        function, timeout_s=timeout_s, num_processes=1, python=python, import_s=timeout_s
    ) as pool:
        try:
            pool.start()
        except WorkerError as error:
            raise SpecError(error.message, details=error.details) from error
        except OSError as error:
            raise SpecError(f"cannot run {python}: {error.strerror}") from error
