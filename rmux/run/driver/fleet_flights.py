"""Which worker has which request now, and every call that changes it.

Sent, booked, stopped, buried, adopted. A response runs in parts (see `ledger`, `continuation`). Not
for use from several threads: the stream holds its lock around every call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmux.cluster import DeviceId
from rmux.errors import BackendError, ConflictError, DeadlineError, RmuxError
from rmux.run.driver.continuation import Carried, exactness_of, request_for
from rmux.run.driver.engines import Exactness, Sampling
from rmux.run.driver.fleet_routing import Loads, Queued
from rmux.run.driver.ledger import Ledger, Part
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers.step_loop import Delta
from rmux.run.workers.vllm_engine import Request

_log = logging.getLogger(__name__)

_CALL_S = 60.0
_STOP_S = 15.0
"""A step and a flush; a worker that takes longer is stuck."""
_DEATHS = ("backend.died", "engine.failed", "backend.silent")


@dataclass(slots=True, eq=False)
class RolloutHandle:
    """One device's worker as the driver sees it."""

    device: str
    actor: Any
    awake: bool = False
    version: int = 0
    cursor: int = 0
    """Last flush of the worker that is booked."""
    dead: RmuxError | None = None

    @property
    def usable(self) -> bool:
        return self.awake and self.dead is None

    @property
    def id(self) -> DeviceId:
        return DeviceId.parse(self.device)


@dataclass(slots=True)
class _Flight:
    """One response under way."""

    sampling: Sampling
    seed: int
    device: DeviceId | None = None
    """Of the worker that has its part; None until it is sent."""
    part: Part | None = None
    carried: Carried | None = None


@dataclass(slots=True)
class _Batch:
    """One call to one worker."""

    requests: list[Request] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)


class Flights:
    """Over the workers in `members`. `check_version` raises for one whose weights are too old;
    `on_end` is told each key whose response is complete."""

    def __init__(
        self,
        session: RaySession,
        members: Sequence[RolloutHandle],
        *,
        ledger: Ledger,
        check_version: Callable[[RolloutHandle], None],
        on_end: Callable[[int], None],
    ) -> None:
        self._session = session
        self._check_version = check_version
        self._on_end = on_end
        self.ledger = ledger
        self.members = {handle.id: handle for handle in members}
        self.queues: dict[DeviceId, list[int]] = {device: [] for device in self.members}
        """Unfinished keys of each worker in the order it serves them."""
        self._flights: dict[int, _Flight] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    def placed(self) -> dict[int, DeviceId]:
        """Unfinished keys that a worker has, and whose."""
        return {k: one.device for k, one in self._flights.items() if one.device is not None}

    def add(self, key: int, *, sampling: Sampling, seed: int) -> None:
        """A response that `send` will start."""
        self._flights[key] = _Flight(sampling=sampling, seed=seed)

    def enlist(self, handles: Sequence[RolloutHandle]) -> None:
        for handle in handles:
            self._check_version(handle)
        for handle in handles:
            self.members[handle.id] = handle
            self.queues[handle.id] = []

    def strike(self, devices: Iterable[DeviceId]) -> None:
        """These workers are no members from now on; nothing may be left there."""
        for device in devices:
            del self.members[device], self.queues[device]

    def queue(self, device: DeviceId) -> list[Queued]:
        return [
            Queued(key=key, tokens=self.ledger.length(key), version=self.ledger.version(key))
            for key in self.queues[device]
        ]

    def send(
        self,
        keys: Sequence[int],
        *,
        homes: Mapping[int, DeviceId] | None = None,
        avoid: Sequence[DeviceId] = (),
    ) -> int:
        """Share out new parts for these responses, each worker's in one call; how many of them go
        on exactly. BackendError when no worker is left, ConflictError when none is awake."""
        batches = self._share(keys, homes=homes or {}, avoid=avoid)
        refs = {
            device: self.members[device].actor.submit.remote(batch.requests)
            for device, batch in batches.items()
        }
        exact = 0
        for device, ref in refs.items():
            handle = self.members[device]
            try:
                admission = self._session.get(ref, timeout_s=_CALL_S, what="a submit")
            except RmuxError as error:
                self.bury(handle, error)
                continue
            handle.version = admission.version
            exact += self._judge(batches[device].keys, set(admission.states_taken))
        self.adopt_orphans()
        return exact

    def stop(self, keys: Iterable[int]) -> list[int]:
        """Take requests from their workers, with all they had sampled booked; those unfinished.

        A worker that does not answer is dead: its requests go on from what is booked.
        """
        wanted, refs = set(keys), {}
        for device, queue in self.queues.items():
            chosen = [key for key in queue if key in wanted]
            handle = self.members[device]
            if chosen and handle.usable:
                refs[device] = handle.actor.stop.remote(self._part_ids(chosen), handle.cursor)
        for device, ref in refs.items():
            handle = self.members[device]
            try:
                stopped = self._session.get(ref, timeout_s=_STOP_S, what="a stop")
            except RmuxError as error:
                self.bury(handle, error)
                continue
            self.book(handle, stopped.cursor, stopped.deltas)
            self._keep_states(device, stopped.states)
        left = [key for key in self._flights if key in wanted]
        for queue in self.queues.values():
            queue[:] = [key for key in queue if key not in wanted]
        return left

    def waiting(self, key: int) -> bool:
        """Whether its worker holds the request and says that it is not its turn. A worker that
        does not answer is dead."""
        flight = self._flights[key]
        handle = None if flight.device is None else self.members.get(flight.device)
        if handle is None or not handle.usable:
            return False
        ids = self._part_ids([key])
        try:
            found = self._session.get(
                handle.actor.queued.remote(ids), timeout_s=_STOP_S, what="a look at the queue"
            )
        except RmuxError as error:
            self.bury(handle, error)
            return False
        return bool(found)

    def abort(self) -> None:
        """Leave nothing running."""
        for device, keys in self.queues.items():
            handle, ids = self.members[device], self._part_ids(keys)
            if handle.usable and ids:
                try:
                    self._session.get(handle.actor.abort.remote(ids), timeout_s=_CALL_S)
                except RmuxError as error:
                    _log.warning("could not stop %d requests: %s", len(ids), error)
            keys.clear()
        self._flights.clear()

    def book(self, handle: RolloutHandle, cursor: int, deltas: Sequence[Delta]) -> None:
        """Take in what a worker sent, of the parts that are its own now."""
        handle.cursor = max(handle.cursor, cursor)
        if not deltas:
            return
        own = {
            flight.part.id: key
            for key, flight in self._flights.items()
            if flight.part is not None and flight.device == handle.id
        }
        for delta in deltas:
            key = own.get(delta.request_id)
            if key is None or key not in self._flights:
                continue
            self.ledger.record(delta, version=handle.version)
            if self.ledger.finish_reason(key):
                del self._flights[key]
                self.queues[handle.id].remove(key)
                self._on_end(key)

    def bury(self, handle: RolloutHandle, error: RmuxError) -> None:
        """A worker died or does not answer. Raises when none is left, and for any other error."""
        if isinstance(error, DeadlineError):
            error = BackendError(f"{handle.device} does not answer", code="backend.silent")
        if error.code not in _DEATHS:
            raise error
        keys = self.queues.get(handle.id, [])
        if handle.dead is None:
            _log.warning("%s; %d requests continue elsewhere", error, len(keys))
        handle.dead, handle.awake = error, False
        if handle.id in self.members and not any(one.usable for one in self.members.values()):
            raise error

    def adopt_orphans(self) -> None:
        """Requests of dead workers go on elsewhere, from the tokens booked."""
        for device, handle in list(self.members.items()):
            if handle.dead is not None and self.queues[device]:
                orphans = list(self.queues[device])
                self.queues[device].clear()
                self.send(orphans)

    def _share(
        self, keys: Sequence[int], *, homes: Mapping[int, DeviceId], avoid: Sequence[DeviceId]
    ) -> dict[DeviceId, _Batch]:
        usable = self._usable()
        loads = Loads(
            {one.id: sum(map(self.ledger.budget, self.queues[one.id])) for one in usable},
            {one.id: one.version for one in usable},
        )
        batches: dict[DeviceId, _Batch] = {handle.id: _Batch() for handle in usable}
        for key in keys:
            flight = self._flights[key]
            device = self._choose(key, loads, home=homes.get(key), avoid=avoid)
            flight.part, flight.device = self.ledger.start(key), device
            self.queues[device].append(key)
            batches[device].keys.append(key)
            batches[device].requests.append(
                request_for(
                    flight.part,
                    sampling=flight.sampling,
                    seed=flight.seed,
                    carried=flight.carried,
                )
            )
        return {device: batch for device, batch in batches.items() if batch.requests}

    def _choose(
        self, key: int, loads: Loads, *, home: DeviceId | None, avoid: Sequence[DeviceId]
    ) -> DeviceId:
        ledger = self.ledger
        size = ledger.prompt_length(key) + ledger.budget(key)
        device = loads.choose(size, version=ledger.version(key), home=home, avoid=avoid)
        if device is None:
            # Only after a death: every token of a response is of one version.
            dropped = ledger.restart(key)
            _log.warning("request %d begins again: %d tokens of lost weights", key, dropped)
            self._flights[key].carried = None
            device = loads.choose(size + dropped)
        assert device is not None
        return device

    def _usable(self) -> list[RolloutHandle]:
        usable = [handle for handle in self.members.values() if handle.usable]
        if not usable:
            dead = [handle.dead for handle in self.members.values() if handle.dead is not None]
            if dead:
                raise dead[-1]
            raise ConflictError("no rollout worker is awake", code="fleet.asleep")
        for handle in usable:
            self._check_version(handle)
        return usable

    def _judge(self, keys: Sequence[int], taken: set[str]) -> int:
        exact = 0
        for key in keys:
            flight = self._flights.get(key)
            if flight is None or flight.part is None:
                continue
            worth = exactness_of(
                flight.part, sampling=flight.sampling, state_taken=flight.part.id in taken
            )
            if worth is Exactness.EXACT:
                exact += 1
            else:
                self.ledger.mark(key, worth)
        return exact

    def _keep_states(self, device: DeviceId, states: Mapping[str, tuple[int, bytes]]) -> None:
        for key in self.queues[device]:
            flight = self._flights[key]
            if flight.part is not None and flight.part.id in states:
                tokens, state = states[flight.part.id]
                flight.carried = Carried(tokens=flight.part.start + tokens, state=state)

    def _part_ids(self, keys: Iterable[int]) -> list[str]:
        parts = (self._flights[key].part for key in keys)
        return [part.id for part in parts if part is not None]
