"""One rank's part of a plan: receive, forward while it arrives, check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rmux.errors import InternalError, RmuxError
from rmux.sync.plan import Plan, Rank, Step
from rmux.sync.transport.base import (
    CHUNK_BYTES,
    Endpoint,
    Inbox,
    Progress,
    TransferResult,
    Transport,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    step: Step
    result: TransferResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank moved; instants are monotonic seconds of its host."""

    rank: Rank
    begun_s: float
    ended_s: float
    sent: tuple[StepReport, ...]
    received: tuple[StepReport, ...]

    @property
    def link_bytes(self) -> int:
        """Sent over the slow link."""
        return sum(each.result.bytes for each in self.sent if each.step.crosses_link)

    @property
    def sent_bytes(self) -> int:
        return sum(each.result.bytes for each in self.sent)


def run_rank(
    plan: Plan,
    rank: Rank,
    blob: memoryview,
    *,
    sync_id: str,
    transport: Transport,
    inbox: Inbox | None,
    endpoints: Mapping[Rank, Endpoint],
    deadline_s: float,
    streams: int = 1,
    chunk_bytes: int = CHUNK_BYTES,
) -> RankReport:
    """Does all steps of `rank` at once and returns when they are done and checked.

    `blob` is the whole of the weights: a source reads it, a target fills it. `inbox` is needed by
    targets, `endpoints` by senders. The first error of any step is raised after the others have
    let go of `blob`; it closes the inbox, since half a sync is of no use.
    """
    if inbox is None and plan.received_by(rank):
        raise InternalError(f"rank {rank} receives, but has no inbox")
    part = _Part(
        plan,
        rank,
        blob,
        sync_id=sync_id,
        transport=transport,
        endpoints=endpoints,
        deadline_s=deadline_s,
        streams=streams,
        chunk_bytes=chunk_bytes,
    )
    return part.run(inbox)


class _Part:
    def __init__(
        self,
        plan: Plan,
        rank: Rank,
        blob: memoryview,
        *,
        sync_id: str,
        transport: Transport,
        endpoints: Mapping[Rank, Endpoint],
        deadline_s: float,
        streams: int,
        chunk_bytes: int,
    ) -> None:
        self._rank = rank
        self._blob = blob
        self._sync_id = sync_id
        self._transport = transport
        self._endpoints = endpoints
        self._deadline_s = deadline_s
        self._streams = streams
        self._chunk_bytes = chunk_bytes
        self._incoming = plan.received_by(rank)
        self._outgoing = plan.sent_by(rank)
        self._arriving = {step.id: Progress() for step in self._incoming}
        self._results: dict[str, TransferResult] = {}
        self._error: RmuxError | None = None
        self._lock = threading.Lock()

    def run(self, inbox: Inbox | None) -> RankReport:
        begun_s = time.monotonic()
        threads = [
            *(self._thread(step, self._sending(step), inbox) for step in self._outgoing),
            *(
                self._thread(step, self._receiving(step, inbox), inbox)
                for step in self._incoming
                if inbox is not None
            ),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return RankReport(
            rank=self._rank,
            begun_s=begun_s,
            ended_s=time.monotonic(),
            sent=self._reports(self._outgoing),
            received=self._reports(self._incoming),
        )

    def _reports(self, steps: tuple[Step, ...]) -> tuple[StepReport, ...]:
        return tuple(StepReport(step=step, result=self._results[step.id]) for step in steps)

    def _thread(
        self, step: Step, move: Callable[[], TransferResult], inbox: Inbox | None
    ) -> threading.Thread:
        def run() -> None:
            try:
                result = move()
            except RmuxError as error:
                self._fail(error, inbox)
                return
            with self._lock:
                self._results[step.id] = result

        return threading.Thread(target=run, name=f"sync-{step.id}", daemon=True)

    def _receiving(self, step: Step, inbox: Inbox) -> Callable[[], TransferResult]:
        def move() -> TransferResult:
            with self._blob[step.shard.begin : step.shard.end] as part:
                return inbox.receive_into(
                    part,
                    transfer_id=self._transfer_id(step),
                    deadline_s=self._deadline_s,
                    streams=self._streams,
                    progress=self._arriving[step.id],
                )

        return move

    def _sending(self, step: Step) -> Callable[[], TransferResult]:
        def move() -> TransferResult:
            with self._blob[step.shard.begin : step.shard.end] as part:
                return self._transport.send(
                    self._endpoints[step.receiver],
                    part,
                    transfer_id=self._transfer_id(step),
                    streams=self._streams,
                    chunk_bytes=self._chunk_bytes,
                    deadline_s=self._deadline_s,
                    progress=None if step.after is None else self._arriving[step.after],
                )

        return move

    def _transfer_id(self, step: Step) -> str:
        return f"{self._sync_id}/{step.id}"

    def _fail(self, error: RmuxError, inbox: Inbox | None) -> None:
        with self._lock:
            first = self._error is None
            self._error = self._error or error
        if not first:
            return
        for progress in self._arriving.values():
            progress.fail(error)
        if inbox is not None:
            inbox.close()
