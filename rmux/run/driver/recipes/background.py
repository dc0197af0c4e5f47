"""A call that runs on while its caller may stop waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class Background(Generic[R]):
    """Starts at once, in a thread that does not keep the process alive."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._found: R | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within so long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> R:
        """Waits for the end; raises what the function raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]  # the function ended without an error

    def _run(self) -> None:
        try:
            self._found = self._function()
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
