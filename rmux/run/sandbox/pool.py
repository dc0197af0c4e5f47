"""Reward functions in killable processes, each call with a deadline of its own."""

from __future__ import annotations

import logging
import select
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rmux.errors import WorkerError
from rmux.run.sandbox.process import Sandbox

_log = logging.getLogger(__name__)

IMPORT_S = 60.0
"""Time a sandbox has to import the function."""

_START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of one call: a number, or None and why there is none."""

    value: float | None
    reason: str = ""


@dataclass(slots=True)
class _Slot:
    sandbox: Sandbox
    deadline_s: float
    call: int | None = None
    ready: bool = False


class RewardPool:
    """`function` is 'file.py:name'. Sandboxes start with the first batch and stay between batches.

    A call that is late or kills its process fails its own sample only; that sandbox is replaced.
    As soon as more than the fraction `max_failed` of a batch failed the rest is given up.
    """

    def __init__(
        self,
        function: str,
        *,
        timeout_s: float,
        num_processes: int = 2,
        max_failed: float = 1.0,
        python: str | None = None,
        import_s: float = IMPORT_S,
    ) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._num_processes = num_processes
        self._max_failed = max_failed
        self._python = python
        self._import_s = import_s
        self._slots: list[_Slot] = []
        self._failed_starts = 0
        self._failed = 0
        """Calls of the batch so far."""

    def score(self, calls: Iterable[Sequence[Any]]) -> list[float | None]:
        """Values of `evaluate`; the reasons of those without one are logged."""
        verdicts = self.evaluate(calls)
        reasons = [verdict.reason for verdict in verdicts if verdict.value is None]
        if reasons:
            _log.warning(
                "%s failed for %d of %d samples, first: %s",
                self._function,
                len(reasons),
                len(verdicts),
                reasons[0],
            )
        return [verdict.value for verdict in verdicts]

    def evaluate(self, calls: Iterable[Sequence[Any]]) -> list[Verdict]:
        """One verdict per tuple of arguments, in order.

        WorkerError 'reward.import' when the import fails, 'reward.failed' past `max_failed`.
        """
        batch = list(calls)
        self._failed = 0
        verdicts: list[Verdict | None] = [None] * len(batch)
        waiting = deque(range(len(batch)))
        while waiting or any(slot.call is not None for slot in self._slots):
            while len(self._slots) < min(self._num_processes, len(batch)):
                self._slots.append(self._start())
            for slot in self._slots:
                if waiting and slot.ready and slot.call is None:
                    slot.call = waiting.popleft()
                    slot.deadline_s = time.monotonic() + self._timeout_s
                    slot.sandbox.send(list(batch[slot.call]))
            for slot in self._await():
                self._advance(slot, verdicts)
            if self._failed > self._max_failed * len(batch):
                self._give_up(verdicts)
        return [verdict for verdict in verdicts if verdict is not None]

    def start(self) -> None:
        """Start one sandbox now. WorkerError when it cannot import the function in time."""
        while not any(slot.ready for slot in self._slots):
            if not self._slots:
                self._slots.append(self._start())
            for slot in self._await():
                self._advance(slot, [])

    def close(self) -> None:
        """Kill every sandbox."""
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.sandbox.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _give_up(self, verdicts: Sequence[Verdict | None]) -> None:
        self.close()  # some are in the middle of a call
        failed = [one.reason for one in verdicts if one is not None and one.value is None]
        reasons = Counter(failed).most_common(5)
        raise WorkerError(
            f"the reward failed for {len(failed)} of {len(verdicts)} responses: {reasons[0][0]}",
            code="reward.failed",
            hint=f"try {self._function} by hand; reward.max_failed is {self._max_failed:g} and "
            f"reward.timeout {self._timeout_s:g} s",
            details={"reasons": dict(reasons)},
        )

    def _start(self) -> _Slot:
        sandbox = Sandbox(self._function, python=self._python)
        return _Slot(sandbox=sandbox, deadline_s=time.monotonic() + self._import_s)

    def _await(self) -> list[_Slot]:
        """Slots with something to read, or late."""
        poller = select.poll()
        owners: dict[int, _Slot] = {}
        for slot in self._slots:
            if slot.ready and slot.call is None:
                continue
            owners[slot.sandbox.fileno()] = slot
            poller.register(slot.sandbox.fileno(), select.POLLIN)
            if (printing := slot.sandbox.printing) is not None:
                owners[printing] = slot
                poller.register(printing, select.POLLIN)
            if (writer := slot.sandbox.writer) is not None:
                owners[writer] = slot
                poller.register(writer, select.POLLOUT)
        left_s = min(slot.deadline_s for slot in owners.values()) - time.monotonic()
        found = {id(owners[fd]): owners[fd] for fd, _ in poller.poll(max(0.0, left_s) * 1000 + 1)}
        now_s = time.monotonic()
        late = {id(slot): slot for slot in owners.values() if now_s >= slot.deadline_s}
        return list({**found, **late}.values())

    def _advance(self, slot: _Slot, verdicts: list[Verdict | None]) -> None:
        slot.sandbox.drain()
        slot.sandbox.push()
        try:
            answer = slot.sandbox.take()
        except EOFError:
            self._replace(slot, verdicts, reason="")
            return
        if answer is not None:
            self._accept(slot, answer, verdicts)
        elif time.monotonic() >= slot.deadline_s:
            limit_s = self._timeout_s if slot.ready else self._import_s
            self._replace(slot, verdicts, reason=f"it took over {limit_s:g} s")

    def _accept(self, slot: _Slot, answer: dict[str, Any], verdicts: list[Verdict | None]) -> None:
        if not slot.ready:
            if "error" in answer:
                self._slots.remove(slot)
                slot.sandbox.kill()
                raise WorkerError(
                    f"{self._function} cannot be imported: {answer['error']}",
                    code="reward.import",
                    details={"stderr": answer.get("trace", "")},
                )
            slot.ready, self._failed_starts = True, 0
        elif slot.call is not None:
            reason = answer.get("error", "")
            verdicts[slot.call] = Verdict(value=answer.get("value"), reason=reason)
            self._failed += "value" not in answer
            slot.call = None

    def _replace(self, slot: _Slot, verdicts: list[Verdict | None], *, reason: str) -> None:
        """The sandbox is gone, or goes for being late."""
        self._slots.remove(slot)
        ended = slot.sandbox.kill()
        if slot.call is not None:
            verdicts[slot.call] = Verdict(value=None, reason=reason or f"its process {ended}")
            self._failed += 1
            return
        self._failed_starts += 1
        if reason or self._failed_starts >= _START_ATTEMPTS:
            raise WorkerError(
                f"{self._function} cannot be imported: {reason or 'its process ' + ended}",
                code="reward.import",
            )
