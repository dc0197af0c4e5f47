"""The rollout fleet: single requests to whatever workers are awake, booked in its own ledger.

Workers leave and join while requests run; what ran on one that left, or died, goes on elsewhere
(see `continuation`). Where none does, the same prompts and seeds meet the same batches, whatever
else the host is doing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from rmux.cluster import DeviceId
from rmux.errors import ConflictError, StaleWeightsError, UserError
from rmux.run.driver.continuation import (
    check_continuable,
    check_prompt,
    check_prompts,
    derived_seed,
)
from rmux.run.driver.engines import (
    FinishedLength,
    InFlight,
    MoveReport,
    Progress,
    Response,
    Sampling,
)
from rmux.run.driver.fleet_flights import RolloutHandle
from rmux.run.driver.fleet_lease import Lease
from rmux.run.driver.fleet_stream import RayStream
from rmux.run.driver.ray_session import RaySession

__all__ = ["RayFleet", "RolloutHandle"]

_log = logging.getLogger(__name__)

_WAIT_S = 1.0


class RayFleet:
    """Fleet over Ray actors. `trainer_version` gives the version that responses are measured by.

    One stream at a time; `leave`, `join`, `in_flight` and `finished_lengths` may be called from any
    thread meanwhile.
    """

    def __init__(
        self,
        session: RaySession,
        handles: Sequence[RolloutHandle],
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_staleness: int,
        seed: int,
        trainer_version: Callable[[], int],
        lease_s: float = 60.0,
    ) -> None:
        """`max_num_seqs` requests run at once on a worker, the others wait there. `lease_s` without
        a token, while others get theirs, is when a request is asked for again."""
        self._session = session
        self._handles = {handle.id: handle for handle in handles}
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._max_staleness = max_staleness
        self._seed = seed
        self._trainer_version = trainer_version
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._stream: RayStream | None = None
        """The newest, also after its end."""
        self._left: set[DeviceId] = set()
        """Awake workers that are kept free."""
        self._calls = 0
        self._calls_of_version: tuple[int, int] = (-1, 0)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        seeds: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[Response]:
        """One response per prompt, in order.

        Without `seeds` they follow from the job's seed, the weight version and the number of calls
        since. UserError for sampling or prompts the engines do not take, StaleWeightsError past
        `max_staleness`, BackendError when the last worker died.
        """
        check_continuable(sampling)
        if seeds is not None and len(seeds) != len(prompts):
            raise UserError(f"{len(seeds)} seeds for {len(prompts)} prompts", code="usage.seeds")
        check_prompts(prompts, max_tokens=sampling.max_tokens, max_model_len=self._max_model_len)
        if not prompts:
            self._check_awake(self._members())
            return []
        with self.stream(on_progress=on_progress) as stream:
            for key, (prompt, seed) in enumerate(
                zip(prompts, seeds or self._own_seeds(len(prompts)), strict=True)
            ):
                stream.submit(key, prompt, sampling=sampling, seed=seed)
            found: dict[int, Response] = {}
            while len(found) < len(prompts):
                if taken := stream.next(_WAIT_S):
                    found[taken[0]] = taken[1]
        return [found[key] for key in range(len(prompts))]

    def stream(self, *, on_progress: Progress | None = None) -> RayStream:
        """See `Stream`. ConflictError while another is open or when no worker is awake,
        StaleWeightsError past `max_staleness`, BackendError when all workers died."""
        with self._lock:
            if self._stream is not None and not self._stream.closed:
                raise ConflictError("another stream of the fleet is open", code="fleet.busy")
            members = self._members()
            self._check_awake(members)
            self._left -= {handle.id for handle in members}
            self._calls += 1
            self._stream = RayStream(
                self._session,
                members,
                call=self._calls,
                max_num_seqs=self._max_num_seqs,
                check=self._check_request,
                check_version=self._check_version,
                on_progress=on_progress,
                lease=Lease(lease_s=self._lease_s),
            )
            return self._stream

    def in_flight(self) -> tuple[InFlight, ...]:
        stream = self._stream
        return () if stream is None else stream.in_flight()

    def finished_lengths(self) -> tuple[FinishedLength, ...]:
        stream = self._stream
        return () if stream is None else stream.finished_lengths()

    def leave(
        self, devices: Sequence[DeviceId], *, homes: Mapping[int, DeviceId] | None = None
    ) -> MoveReport:
        """See `Fleet.leave`. ConflictError, with nothing changed, when a request could go on
        nowhere."""
        with self._lock:
            handles = self._known(devices)
            stream = self._stream
            report = MoveReport() if stream is None else stream.leave(devices, homes=homes)
            for handle in handles:
                if handle.usable:
                    handle.awake = False
                    self._left.add(handle.id)
        if report.requests:
            _log.info(
                "%d requests left %s: %d exactly, %d tokens carried, %.3f s",
                report.requests,
                ", ".join(map(str, devices)),
                report.exact,
                report.tokens_carried,
                report.seconds,
            )
        return report

    def join(self, devices: Sequence[DeviceId]) -> int:
        """See `Fleet.join`. ConflictError for a worker that is not awake, StaleWeightsError for
        one past `max_staleness`."""
        with self._lock:
            handles = self._known(devices)
            for handle in handles:
                if not handle.awake and handle.id in self._left:
                    handle.awake = True
                self._left.discard(handle.id)
            self._check_awake(handles)
            for handle in handles:
                if not handle.usable:
                    raise handle.dead or ConflictError(
                        f"{handle.device} is not awake", code="fleet.asleep"
                    )
            return 0 if self._stream is None else self._stream.join(handles)

    def _known(self, devices: Iterable[DeviceId]) -> list[RolloutHandle]:
        unknown = [device for device in devices if device not in self._handles]
        if unknown:
            raise UserError(f"{unknown[0]} is no rollout device of the job", code="usage.device")
        return [self._handles[device] for device in devices]

    def _members(self) -> list[RolloutHandle]:
        return [handle for handle in self._handles.values() if handle.usable]

    def _check_awake(self, members: Sequence[RolloutHandle]) -> None:
        if not any(handle.usable for handle in members):
            handles = reversed(self._handles.values())
            if dead := next((handle.dead for handle in handles if handle.dead), None):
                raise dead
            raise ConflictError("no rollout worker is awake", code="fleet.asleep")
        for handle in members:
            self._check_version(handle)

    def _check_version(self, handle: RolloutHandle) -> None:
        newest = self._trainer_version()
        if handle.version < newest - self._max_staleness:
            raise StaleWeightsError(
                f"{handle.device} holds weight version {handle.version}, the trainer is at "
                f"{newest} and {self._max_staleness} versions are allowed",
                details={"device": handle.device, "version": handle.version},
            )

    def _check_request(self, key: int, prompt: Sequence[int], sampling: Sampling) -> None:
        check_continuable(sampling)
        check_prompt(
            prompt, key=key, max_tokens=sampling.max_tokens, max_model_len=self._max_model_len
        )

    def _own_seeds(self, count: int) -> tuple[int, ...]:
        version = self._trainer_version()
        calls = self._calls_of_version[1] + 1 if self._calls_of_version[0] == version else 0
        self._calls_of_version = (version, calls)
        return tuple(derived_seed(self._seed, version, calls, index) for index in range(count))
