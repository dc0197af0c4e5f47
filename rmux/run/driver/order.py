"""The order of the phases of one attempt: whose turn it is, in one thread or in two."""

from __future__ import annotations

import threading

from rmux.errors import UserError
from rmux.job import Phase

_FOLLOWS: dict[Phase | None, tuple[Phase, ...]] = {
    None: (Phase.ROLLOUT, Phase.INIT),
    Phase.INIT: (Phase.ROLLOUT, Phase.INIT),
    Phase.ROLLOUT: (Phase.TRAIN,),
    Phase.TRAIN: (Phase.SYNC, Phase.ROLLOUT),
    Phase.SYNC: (Phase.ROLLOUT,),
}


class Order:
    """Thread-safe. On-policy one phase runs at a time: rollout, train, and a sync where there is
    one.

    One step off-policy a rollout may run beside the train and the sync of the iteration before it,
    never further ahead, and each iteration has its sync: without one the samples would grow staler.
    It does so in a second thread: in the main thread nobody could train meanwhile.
    """

    def __init__(self, *, finished: int, max_staleness: int) -> None:
        self.finished = finished
        """Iterations that are over; they count from 0."""
        self._ahead = max_staleness
        self._rolled = self._trained = finished
        self._last: Phase | None = None
        self._running: dict[Phase, int] = {}
        """Phase to the thread it runs in."""
        self._lock = threading.Lock()

    def begin(self, phase: Phase) -> int:
        """The iteration that the phase belongs to. UserError when it is not due."""
        with self._lock:
            self._check_threads(phase)
            if self._ahead:
                self._check_ahead(phase)
            else:
                self._check_turn(phase)
            self._running[phase] = threading.get_ident()
            if phase is Phase.ROLLOUT:
                return self._rolled
            return self._trained if phase is Phase.TRAIN else self.finished

    def end(self, phase: Phase) -> None:
        with self._lock:
            del self._running[phase]
            self._last = phase
            if phase is Phase.ROLLOUT:
                self._rolled += 1
            elif phase is Phase.TRAIN:
                self._trained += 1

    def give_up(self, phase: Phase) -> None:
        """It failed, and is due again."""
        with self._lock:
            del self._running[phase]

    def end_iteration(self) -> None:
        with self._lock:
            self.finished += 1
            self._last = Phase.SYNC

    @property
    def lacks_only_sync(self) -> bool:
        """Whether an iteration is over as soon as it has no sync."""
        with self._lock:
            return self._last is Phase.TRAIN and not self._running and not self._ahead

    @property
    def is_at_rest(self) -> bool:
        """Whether no iteration is under way but the one whose rollout is about to begin."""
        with self._lock:
            return self._rolled == self.finished and set(self._running) <= {Phase.ROLLOUT}

    @property
    def is_trained_out(self) -> bool:
        """Whether no train and no sync is under way or due: what was trained is sent and saved."""
        with self._lock:
            return self._trained == self.finished and set(self._running) <= {Phase.ROLLOUT}

    @property
    def current(self) -> tuple[Phase | None, int]:
        """The phase that runs, of two the rollout, with its iteration."""
        with self._lock:
            if Phase.ROLLOUT in self._running:
                return Phase.ROLLOUT, self._rolled
            return next(iter(self._running), None), self.finished

    def _check_threads(self, phase: Phase) -> None:
        here = threading.get_ident()
        for other, thread in self._running.items():
            if thread == here:
                raise UserError(f"phase {phase} was called inside phase {other}")
            if not self._ahead:
                raise UserError(
                    f"phase {phase} was called while phase {other} runs in another thread",
                    hint="only with max_staleness = 1 may a rollout run beside a train",
                )
            if (phase is Phase.ROLLOUT) == (other is Phase.ROLLOUT):
                raise UserError(
                    f"phase {phase} was called while phase {other} runs in another thread",
                    hint="only a rollout may run beside another phase",
                )

    def _check_turn(self, phase: Phase) -> None:
        expected = _FOLLOWS[self._last]
        if phase not in expected:
            after = "first" if self._last is None else f"after {self._last}"
            raise UserError(
                f"phase {phase} was called where {expected[0]} is due {after}",
                hint="each iteration is rollout, train, then sync where weights are sent",
            )

    def _check_ahead(self, phase: Phase) -> None:
        untrained, unsent = self._rolled - self._trained, self._trained - self.finished
        due = {
            Phase.INIT: self._last in (None, Phase.INIT),
            Phase.ROLLOUT: untrained + unsent <= self._ahead
            and not (untrained and threading.current_thread() is threading.main_thread()),
            Phase.TRAIN: untrained > 0 and not unsent,
            Phase.SYNC: unsent > 0,
        }
        if not due[phase]:
            expected = next(one for one in (Phase.SYNC, Phase.TRAIN, Phase.ROLLOUT) if due[one])
            raise UserError(
                f"phase {phase} was called where {expected} of iteration {self.finished} is due",
                hint="with max_staleness = 1 each iteration is rollout, train, sync, and a rollout "
                "may be one iteration ahead",
            )
