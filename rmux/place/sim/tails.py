"""Rollouts of a simulation whose stragglers move together: what the live fleet does, in numbers.

Such a rollout begins on the first device it gets and takes the others in as they come: n devices do
n times the work of one. So a job that gets the freed devices of a tail goes ahead on them, and is
never later than if it had waited for all.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmux.cluster import DeviceId
from rmux.ids import JobId
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
    """One such rollout. Instants and work are integer milliseconds; work is counted on all its
    devices, so `left` is in device-milliseconds."""

    def __init__(
        self,
        devices: Sequence[DeviceId],
        shares: Sequence[float],
        *,
        switch_ms: int,
        run_ms: int,
        now_ms: int,
    ) -> None:
        self.at_ms = now_ms
        self.width = 0
        """Devices that work on it now."""
        self.of = len(devices)
        """Devices whose joint work `left` is counted in."""
        self.total_ms = switch_ms + run_ms
        self.left = self.of * self.total_ms
        self.run_ms, self.shares = run_ms, shares
        self.ends_ms = [switch_ms + share / shares[-1] * run_ms for share in shares]
        """When each response ends, were all devices there from the begin."""
        self.homes = [devices[index % len(devices)] for index in range(len(shares))]
        self.done = 0
        self.max_seqs = -(-len(shares) // len(devices))
        """Responses that decode together on one device: as many as it has at the begin."""
        self.freed: list[tuple[int, int]] = []
        """(instant, devices) of each move."""

    def set_width(self, width: int, *, now_ms: int) -> None:
        self._advance(now_ms)
        self.width = width

    def end_ms(self) -> int:
        return self.at_ms - (-self.left // self.width)

    def check_ms(self, checks: int) -> int | None:
        """When the next share of the responses is done; None when that is the last."""
        step = max(1, len(self.shares) // checks)
        place = (self.done // step + 1) * step
        if place >= len(self.shares):
            return None
        to_go = self.ends_ms[place - 1] - (self.total_ms - self.left / self.of)
        return self.at_ms + max(1, -int(-to_go * self.of // self.width))

    def unfinished(self, now_ms: int) -> range:
        self._advance(now_ms)
        gone_ms = self.total_ms - self.left / self.of
        self.done = max(self.done, bisect.bisect_right(self.ends_ms, gone_ms + 1e-6))
        return range(min(self.done, len(self.shares) - 1), len(self.shares))

    def move(self, found: TailDecision, rest: range, kept: int, *, now_ms: int) -> None:
        """Take the decision over the responses `rest`: they go on on `kept` devices as fast as
        before, after the pause that the decision foresees."""
        for place, home in found.homes.items():
            self.homes[rest[place]] = home
        pause_ms = round(1000 * max(0.0, found.rest_after_s - found.rest_s))
        rest_ms = -(-self.left // self.of)
        self.freed.append((now_ms, self.of - kept))
        self.of = self.width = kept
        self.left = kept * (rest_ms + pause_ms)
        self.total_ms += pause_ms
        self.ends_ms = [ends_ms + pause_ms for ends_ms in self.ends_ms]

    def freed_device_ms(self, end_ms: int) -> int:
        return sum(count * (end_ms - at_ms) for at_ms, count in self.freed)

    def _advance(self, now_ms: int) -> None:
        self.left = max(0, self.left - self.width * (now_ms - self.at_ms))
        self.at_ms = now_ms


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
) -> tuple[TailDecision, range]:
    """The decision now, and the responses it is about."""
    batch = migration.batches[job_id]
    rest = progress.unfinished(now_ms)
    # All responses decode in step: what is generated so far is the same for all of them.
    longest = max(1e-9, progress.shares[-1] * batch.limit_tokens)
    step_s = progress.run_ms / 1000 / longest
    left_s = progress.left / progress.of / 1000
    so_far = round(max(0.0, longest - left_s / step_s)) if step_s else 0
    ready = [one.ready_s for one in after if one.ready_s is not None]
    rollout = Rollout(
        total=len(progress.shares),
        unfinished=tuple(Response(device=progress.homes[i], tokens=so_far) for i in rest),
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
    )
    speed = Speed(
        step_s=step_s, prefill_s_per_token=migration.prefill * step_s, move_s=migration.move_s
    )
    history = migration.history(job_id)
    return decide(rollout, history=history, speed=speed, trigger=migration.trigger), rest
