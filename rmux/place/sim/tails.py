"""Rollouts of a simulation whose stragglers move together: what the live fleet does, in numbers.

Such a rollout begins on the first device it gets and takes the others in as they come. So a job
that gets the freed devices of a tail goes ahead on them, and is never later than if it had waited
for all.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmux.cluster import DeviceId
from rmux.ids import JobId
from rmux.place.batching import Batching, Request
from rmux.place.lengths import Survival
from rmux.place.sim.durations import HeavyTailed
from rmux.place.tail import Response, Rollout, Speed, TailDecision, TailDevice, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Whose stragglers move, and what that costs."""

    batches: Mapping[JobId, HeavyTailed]
    """The response lengths of every job that may move its own: those that its durations come
    from."""
    trigger: float | None = None
    """The fixed share of done responses; None decides by predicted gain."""
    prefill: float = 0.005
    """Time to prefill a token ÷ time of a decoding step."""
    move_s: float = 1.0
    """Of each move besides: stop, announce, continue."""
    checks: int = 32
    """Questions per rollout, one whenever that share of the responses is done."""
    survivals: dict[JobId, Survival] = field(default_factory=dict)
    """Filled as needed: the history of each job, as known before."""

    def history(self, job_id: JobId) -> Survival:
        if job_id not in self.survivals:
            batch = self.batches[job_id]
            ended = Survival.of(batch.tokens, limit_tokens=batch.limit_tokens)
            self.survivals[job_id] = ended
        return self.survivals[job_id]


class Progress:
    """One such rollout, decoding as emulated engines do. Instants are integer milliseconds.

    `run_ms` is what it takes on all its devices at once: a step is as long as that makes it.
    """

    def __init__(
        self,
        devices: Sequence[DeviceId],
        batch: HeavyTailed,
        shares: Sequence[float],
        *,
        migration: Migration,
        switch_ms: int,
        run_ms: int,
        now_ms: int,
    ) -> None:
        self.total = len(shares)
        self.max_seqs = -(-len(shares) // len(devices))
        """Responses that decode together on one device: as many as it has at the begin."""
        lengths = [share * batch.limit_tokens for share in shares]
        random.Random(len(shares)).shuffle(lengths)  # they come sorted, and run in no order
        requests = [Request(key=key, length=length) for key, length in enumerate(lengths)]
        unit = Speed(step_s=1.0 - batch.crowding, per_seq_s=batch.crowding / self.max_seqs)
        step_s = run_ms / 1000 / _alone_s(requests, devices, unit, self.max_seqs)
        self.speed = Speed(
            step_s=unit.step_s * step_s,
            per_seq_s=unit.per_seq_s * step_s,
            prefill_s_per_token=migration.prefill * step_s,
            move_s=migration.move_s,
        )
        self.switch_ms = switch_ms
        self.batching = Batching(speed=self.speed, max_seqs=self.max_seqs, now_s=now_ms / 1000)
        self.batching.submit(requests, now_s=now_ms / 1000)
        self.asked = 0
        """Responses that were done at the last question."""
        self.freed: list[tuple[int, int]] = []
        """(instant, devices) of each move."""

    def widen(self, device: DeviceId, *, now_ms: int) -> None:
        """One more device works on it once it is awake."""
        ready_s = (now_ms + self.switch_ms) / 1000
        self.batching.join([device], now_s=now_ms / 1000, ready_s=ready_s)

    def next_ms(self) -> int | None:
        """When the next response is done; None when all are."""
        next_s = self.batching.next_s()
        return None if next_s is None else math.ceil(1000 * next_s - 1e-6)

    def advance(self, now_ms: int) -> int:
        """Responses done by then."""
        self.batching.advance(now_ms / 1000 + 1e-9)
        return self.total - self.batching.unfinished

    def move(
        self, freed: Sequence[DeviceId], homes: Mapping[int, DeviceId], *, now_ms: int
    ) -> None:
        self.batching.leave(freed, homes=homes, now_s=now_ms / 1000 + 1e-9)
        self.freed.append((now_ms, len(freed)))

    def freed_device_ms(self, end_ms: int) -> int:
        return sum(count * (end_ms - at_ms) for at_ms, count in self.freed)


def _alone_s(
    requests: Sequence[Request], devices: Sequence[DeviceId], speed: Speed, max_seqs: int
) -> float:
    """What they take on all devices from the begin."""
    batching = Batching(speed=speed, max_seqs=max_seqs)
    batching.join(devices, now_s=0.0)
    batching.submit(requests, now_s=0.0)
    end_s = 0.0
    while (next_s := batching.next_s()) is not None:
        batching.advance(next_s)
        end_s = next_s
    return end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """Who comes after the rollout on one of its devices."""

    device: DeviceId
    ready_s: float | None
    """From now; None when that is not foreseen, or nobody comes."""
    start_s: float
    """Planned start, from now."""


def ask(
    migration: Migration,
    job_id: JobId,
    progress: Progress,
    after: Sequence[Next],
    *,
    now_ms: int,
    began_ms: int,
) -> tuple[TailDecision, dict[int, DeviceId]]:
    """The decision now, and where each response of a freed device goes on."""
    batch = migration.batches[job_id]
    now_s = now_ms / 1000 + 1e-9
    rest = list(progress.batching.in_flight(now_s=now_s))
    here = progress.batching.devices
    ready = [one.ready_s for one in after if one.ready_s is not None]
    rollout = Rollout(
        total=progress.total,
        unfinished=tuple(
            Response(device=device or here[0], tokens=int(request.tokens))
            for device, request in rest
        ),
        devices=tuple(
            TailDevice(
                id=one.device,
                hardware="",
                max_seqs=progress.max_seqs,
                kv_tokens=progress.max_seqs * batch.limit_tokens,
                next_start_s=one.start_s,
            )
            for one in after
        ),
        elapsed_s=(now_ms - began_ms) / 1000,
        next_ready_s=min(ready, default=None),
        moved_before=bool(progress.freed),
        given=sum(count for _, count in progress.freed),
    )
    found = decide(
        rollout,
        history=migration.history(job_id),
        speed=progress.speed,
        trigger=migration.trigger,
    )
    return found, {rest[index][1].key: home for index, home in found.homes.items()}
