"""Requests one by one on the workers that are awake, while workers leave and join.

The thread that takes responses polls the workers; any other may make workers leave and join at the
same time, under the one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rmux.cluster import DeviceId
from rmux.errors import ConflictError, RmuxError, UserError
from rmux.run.driver.engines import (
    FinishedLength,
    InFlight,
    MoveReport,
    Progress,
    Response,
    Sampling,
)
from rmux.run.driver.fleet_flights import Flights, RolloutHandle
from rmux.run.driver.fleet_lease import Lease
from rmux.run.driver.fleet_routing import even_out
from rmux.run.driver.ledger import Ledger
from rmux.run.driver.ray_session import RaySession

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_LOOK_S = 0.1
"""Requests that another thread moved are polled for at their new worker after so long at most."""


class RayStream:
    """Stream over `members`, which only `leave` and `join` change.

    `check` refuses a request before it is booked, `check_version` a worker whose weights are too
    old. `call` is unlike that of any other stream of these workers.
    """

    def __init__(
        self,
        session: RaySession,
        members: Sequence[RolloutHandle],
        *,
        call: int,
        max_num_seqs: int,
        check: Callable[[int, Sequence[int], Sampling], None],
        check_version: Callable[[RolloutHandle], None],
        on_progress: Progress | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._session = session
        self._lock = threading.RLock()
        self._max_num_seqs = max_num_seqs
        self._check = check
        self._on_progress = on_progress
        self._lease = lease or Lease()
        self._ledger = Ledger(call=call)
        self._flights = Flights(
            session,
            members,
            ledger=self._ledger,
            check_version=check_version,
            on_end=self._end,
        )
        self._new: list[int] = []
        self._done: list[int] = []
        self._lengths: list[FinishedLength] = []
        self._polls: dict[Any, RolloutHandle] = {}
        self._failure: RmuxError | None = None
        self.closed = False

    def __enter__(self) -> RayStream:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing running."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._flights.abort()

    def submit(self, key: int, prompt: Sequence[int], *, sampling: Sampling, seed: int) -> None:
        self._check(key, prompt, sampling)
        with self._lock:
            if key in self._ledger:
                raise UserError(f"request {key} is in flight already", code="usage.key")
            self._ledger.open(key, prompt, max_tokens=sampling.max_tokens)
            self._flights.add(key, sampling=sampling, seed=seed)
            self._new.append(key)

    def next(self, timeout_s: float) -> tuple[int, Response] | None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                if self._new:
                    new, self._new = self._new, []
                    self._flights.send(new)
                if self._done:
                    key = self._done.pop(0)
                    return key, self._ledger.take(key)
                if not len(self._flights):
                    return None
                self._poll()
            left_s = max(0.0, deadline_s - time.monotonic())
            if self._collect(min(left_s, _LOOK_S)) and self._on_progress is not None:
                self._on_progress(self._progress())
            if left_s == 0.0 and not self._done:
                return None

    def in_flight(self) -> tuple[InFlight, ...]:
        with self._lock:
            return tuple(
                InFlight(
                    key=key,
                    device=device,
                    prompt_tokens=self._ledger.prompt_length(key),
                    tokens=self._ledger.length(key),
                )
                for key, device in self._flights.placed().items()
            )

    def finished_lengths(self) -> tuple[FinishedLength, ...]:
        with self._lock:
            return tuple(self._lengths)

    def leave(
        self, devices: Iterable[DeviceId], *, homes: Mapping[int, DeviceId] | None = None
    ) -> MoveReport:
        """See `Fleet.leave`; nothing moves once the stream is closed. ConflictError, with nothing
        stopped, when a request could go on nowhere."""
        begun_s = time.monotonic()
        with self._changing():
            if self.closed:
                return MoveReport()
            leaving = [device for device in devices if device in self._flights.members]
            self._check_leave(leaving, homes or {})
            left = self._flights.stop(k for one in leaving for k in self._flights.queues[one])
            self._flights.strike(leaving)
            carried = sum(map(self._ledger.length, left))
            prompts = sum(map(self._ledger.prompt_length, left))
            exact = self._flights.send(left, homes=homes) if left else 0
            return MoveReport(
                requests=len(left),
                tokens_carried=carried,
                tokens_recomputed=carried + prompts,
                exact=exact,
                seconds=time.monotonic() - begun_s,
            )

    def join(self, handles: Iterable[RolloutHandle]) -> int:
        """See `Fleet.join`."""
        with self._changing():
            if self.closed:
                return 0
            flights = self._flights
            joiners = [handle for handle in handles if handle.id not in flights.members]
            flights.enlist(joiners)
            moves = even_out(
                {device: flights.queue(device) for device in flights.members},
                [handle.id for handle in joiners],
                versions={device: one.version for device, one in flights.members.items()},
                max_num_seqs=self._max_num_seqs,
            )
            left = flights.stop(moves)
            if left:
                flights.send(left, homes=moves)
            return len(left)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What fails half-way is told to the thread that waits for responses, too."""
        with self._lock:
            try:
                yield
            except ConflictError:
                raise
            except RmuxError as error:
                self._failure = error
                raise

    def _check_leave(self, leaving: Sequence[DeviceId], homes: Mapping[int, DeviceId]) -> None:
        flights = self._flights
        staying = {d: one for d, one in flights.members.items() if d not in leaving}
        if wrong := [home for home in homes.values() if home not in staying]:
            raise ConflictError(
                f"requests cannot go on at {wrong[0]}: it is no worker of the fleet that stays",
                code="fleet.home",
            )
        versions = {one.version for one in staying.values() if one.usable}
        for device in leaving:
            for key in flights.queues[device]:
                needed = self._ledger.version(key)
                if not versions:
                    why = "no other worker is awake"
                elif needed is not None and needed not in versions:
                    why = f"no other worker holds weight version {needed}, which it began with"
                else:
                    continue
                raise ConflictError(
                    f"request {key} of {device} can go on nowhere: {why}", code="fleet.leave"
                )

    def _poll(self) -> None:
        polled = {handle.id for handle in self._polls.values()}
        for device, keys in self._flights.queues.items():
            handle = self._flights.members[device]
            if keys and device not in polled:
                self._polls[handle.actor.poll.remote(handle.cursor, _POLL_S)] = handle

    def _collect(self, timeout_s: float) -> bool:
        """Book what comes in; whether that was anything new."""
        begun_s = time.monotonic()
        ready = self._session.ready(list(self._polls), timeout_s=timeout_s)
        with self._lock:
            before = self._ledger.num_tokens, self._ledger.num_done
            for ref in ready:
                handle = self._polls.pop(ref)
                try:
                    cursor, deltas = self._session.get(ref)
                except RmuxError as error:
                    self._flights.bury(handle, error)
                    continue
                self._flights.book(handle, cursor, deltas)
            self._flights.adopt_orphans()
            self._renew(time.monotonic() - begun_s)
            return (self._ledger.num_tokens, self._ledger.num_done) != before

    def _renew(self, watched_s: float) -> None:
        """Requests without progress are asked for again, elsewhere if there is another worker."""
        served = {
            key: self._ledger.length(key)
            for keys in self._flights.queues.values()
            for key in keys[: self._max_num_seqs]
        }
        for key in self._lease.overdue(served, watched_s=watched_s):
            device = self._flights.placed().get(key)
            if device is None:
                continue
            if self._flights.waiting(key):
                self._lease.excuse(key)
                continue
            _log.warning(
                "request %d got no token at %s for %g s while others did; asked for again",
                key,
                device,
                self._lease.lease_s,
            )
            left = self._flights.stop([key])
            if left:
                self._flights.send(left, avoid=(device,))

    def _end(self, key: int) -> None:
        at_limit = self._ledger.finish_reason(key) == "length"
        self._lengths.append(FinishedLength(tokens=self._ledger.length(key), at_limit=at_limit))
        self._done.append(key)

    def _progress(self) -> Mapping[str, Any]:
        return {
            "responses_done": self._ledger.num_done,
            "responses": self._ledger.num_opened,
            "tokens": self._ledger.num_tokens,
        }
