"""The pace of a recipe: its phases in turn, or each rollout beside the train before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from rmux.job import JobSpec
from rmux.run.driver import shim

R = TypeVar("R")


def run(
    spec: JobSpec,
    *,
    first: int,
    rollout: Callable[[int], R],
    train: Callable[[int, R], object],
    sync: Callable[[int], object],
) -> None:
    """Iterations `first` … `spec.iterations` - 1; each function gets the iteration's number.

    With `max_staleness` 1 rollout n + 1 runs in a thread of its own while train n and sync n run in
    this one. It begins when sync n - 1 is over, so its samples are at most one version behind the
    trainer that trains on them. The first error of either thread is raised, and cuts the other
    short. Where a cancelled job's next rollout would begin, what was sampled is trained on first.
    Without rmux the phases take turns: the engines are then awake all the time, and a sync parks
    those of the rollout.
    """
    if not spec.max_staleness or not shim.is_active():
        for iteration in range(first, spec.iterations):
            train(iteration, rollout(iteration))
            sync(iteration)
        return
    ahead = _Ahead(rollout, first=first, iterations=spec.iterations)

    def go() -> None:
        try:
            ahead.start()
            for iteration in range(first, spec.iterations):
                train(iteration, ahead.take())
                sync(iteration)
                ahead.go_on()
        except BaseException as error:
            ahead.stop(error)
            raise

    try:
        go()
    except BaseException as error:  # noqa: BLE001 - the first of both threads is raised
        # Once more: what cuts this thread short may come while it stops.
        ahead.stop(error)
        raise ahead.first_error from None


class _Ahead(Generic[R]):
    """The rollouts, in a thread of their own: one that is being trained on, and one ahead."""

    def __init__(self, rollout: Callable[[int], R], *, first: int, iterations: int) -> None:
        self._rollout, self._first, self._iterations = rollout, first, iterations
        self._changed = threading.Condition()
        self._allowed = 2
        """Rollouts that may have begun by now."""
        self._found: list[R] = []
        self._ended: BaseException | None = None
        """Why there are no further rollouts; trained on is what came before."""
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    @property
    def first_error(self) -> BaseException:
        assert self._error is not None
        return self._error

    def start(self) -> None:
        self._thread.start()

    def take(self) -> R:
        """The next rollout, once it is over. Raises what kept it from beginning."""
        with self._changed:
            self._changed.wait_for(lambda: self._found or self._ended)
            if not self._found:
                assert self._ended is not None
                raise self._ended
            return self._found.pop(0)

    def go_on(self) -> None:
        """An iteration is over: its weights may be sampled under."""
        with self._changed:
            self._allowed += 1
            self._changed.notify_all()

    def stop(self, error: BaseException) -> None:
        """The main thread is done; a rollout in flight ends with the engines, or by itself."""
        with self._changed:
            self._stopped = True
            self._error = self._error or error
            self._changed.notify_all()

    def _run(self) -> None:
        for begun, iteration in enumerate(range(self._first, self._iterations)):
            with self._changed:
                self._changed.wait_for(lambda begun=begun: self._stopped or begun < self._allowed)  # type: ignore[misc]
                if self._stopped:
                    return
            try:
                found = self._rollout(iteration)
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                self._fail(error)
                return
            with self._changed:
                self._found.append(found)
                self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._ended = error
            self._changed.notify_all()
            if self._stopped or not isinstance(error, Exception):
                return  # a job that is cancelled trains on what it has
            self._error = error
            # Under the lock: the main thread cannot have left `run` meanwhile.
            shim.interrupt()
