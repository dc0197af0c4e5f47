"""What user code calls: `rmux.phase`, `rmux.runtime_hook`, `rmux.fleet`, `rmux.trainer`.

Inside a driver they lead to its session; outside one they do what the same script needs alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from rmux.errors import UserError
from rmux.job import Phase
from rmux.run.driver.engines import Fleet, Trainer
from rmux.run.driver.session import Session

P = ParamSpec("P")
R = TypeVar("R")

_active: list[Session] = []
"""At most one: user code is imported, not handed a session."""


def activate(session: Session | None) -> None:
    """Make this the session that user code reaches; None ends that."""
    _active[:] = [] if session is None else [session]


def is_active() -> bool:
    """Whether this process is a driver of rmux."""
    return bool(_active)


def interrupt() -> None:
    """Under rmux, cut short what the main thread does: another thread has failed."""
    if _active:
        _active[0].interrupt()


def phase(
    name: str, *, park: Callable[[], Any] | None, wake: Callable[[], Any] | None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """See `rmux.phase`."""
    if name not in tuple(Phase):
        raise UserError(
            f"{name!r} is not a phase", hint=f"phases are {', '.join(Phase)}; see rmux-phase(7)"
        )
    kind = Phase(name)
    if (park or wake) and kind not in (Phase.ROLLOUT, Phase.TRAIN):
        raise UserError(f"phase {kind} holds no device: it takes neither park= nor wake=")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _active:
                return function(*args, **kwargs)
            result: R = _active[0].run(
                kind, lambda: function(*args, **kwargs), park=park, wake=wake
            )
            return result

        return call

    return decorate


def runtime_hook(
    function: Callable[[Mapping[str, Any]], R],
) -> Callable[[Mapping[str, Any]], R]:
    """See `rmux.runtime_hook`."""

    @functools.wraps(function)
    def call(progress: Mapping[str, Any]) -> R:
        if _active:
            _active[0].progress(progress)
        return function(progress)

    return call


def fleet(spec: str | None) -> Fleet:
    """See `rmux.fleet`."""
    if _active:
        return _active[0].engines.fleet()
    from rmux.run.driver.local import local_engines

    return local_engines(spec).fleet()


def trainer(spec: str | None) -> Trainer:
    """See `rmux.trainer`."""
    if _active:
        return _active[0].engines.trainer()
    from rmux.run.driver.local import local_engines

    return local_engines(spec).trainer()
