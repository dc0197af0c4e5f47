"""Watches the last responses of a rollout: whether they move together now, and what that frees.

The judgement is `place.tail`'s; here are its facts: what is in flight, how long this job's
responses get, how fast they grow now, and who comes next on each device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rmux.cluster import DeviceId
from rmux.errors import ConflictError, UserError
from rmux.job import Engine, JobSpec
from rmux.place.tail import Response, Rollout, Speed, TailDecision, TailDevice, decide
from rmux.run.driver.engines import DriverConfig, Fleet, InFlight
from rmux.run.driver.tail_facts import Lengths, Pace
from rmux.run.messages import Grant
from rmux.run.nexts import Next

OFF, GAIN = "off", "gain"
_SPARE = 0.9
"""Of the time to a planned start that a worst case may fill: speeds are means."""
_AGAIN_S = 0.25
"""A question is asked again after so long at most, whatever changed."""
_SOON_S = 0.1
"""A job that wants a device by then is there when it is parked."""
_COST = 20.0
"""An answer that took so much of a core is not asked for again before so many times that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """To be carried out: what `Fleet.leave` needs, and what is told of it."""

    decision: TailDecision
    homes: Mapping[int, DeviceId]
    """Key of the request -> device."""
    job: str
    """Who gets what is freed."""
    done: float
    """Share of the responses that are finished."""


class TailWatch:
    """One rollout at a time, asked from one thread. `after` tells what comes after a grant."""

    def __init__(
        self,
        config: DriverConfig,
        *,
        fleet: Callable[[], Fleet],
        after: Callable[[Grant], Next | None],
        lengths: Lengths,
        now_s: Callable[[], float],
    ) -> None:
        self._config, self._fleet, self._after = config, fleet, after
        self._lengths, self._now_s = lengths, now_s
        self._trigger = trigger_of(config.tail_trigger)
        self._may = config.tail_trigger != OFF and not config.spec.environment.function
        """An episode's last turn is not foreseen."""
        self._pace = Pace()
        self._kv_tokens = _kv_tokens(config.spec)
        self.begin()

    def begin(self) -> None:
        """A rollout begins."""
        self._pace.restart()
        self._began_s = self._looked_s = self._now_s()
        self._given = 0
        self._streams = 1
        self._last: tuple[int, tuple[InFlight, ...]] = (0, ())
        self._asked: tuple[object, ...] = ()
        self._not_before_s = self._not_after_s = 0.0

    def end(self) -> None:
        """It is over: keep the lengths of its responses."""
        self._lengths.add(self._fleet().finished_lengths())
        self._lengths.save()

    def look(self, grants: Sequence[Grant]) -> Move | None:
        """The move that pays now, if any, of the devices that the rollout has."""
        now_s = self._now_s()
        flights = self._fleet().in_flight()
        self._note(flights, now_s=now_s)
        nexts = [self._after(grant) for grant in grants]
        known = [one for one in nexts if one is not None]
        speed = self._pace.speed()
        if not (self._may and flights and speed and len(known) == len(grants) > 1):
            return None
        if not any(one.job for one in known):
            return None
        news = (len(flights), tuple((one.device, one.job, _is_ready(one)) for one in known))
        if now_s < self._not_before_s or (news == self._asked and now_s < self._not_after_s):
            return None
        self._asked, self._not_after_s = news, now_s + _AGAIN_S
        begun_s = time.thread_time()
        move = self._ask(flights, known, speed, now_s=now_s)
        self._not_before_s = now_s + _COST * (time.thread_time() - begun_s)
        return move

    def check(self, move: Move, flights: Sequence[InFlight]) -> None:
        """ConflictError where a request would go on on a device of another numerics class: its
        tokens would not be those that its own device gives."""
        for one in flights:
            home = move.homes.get(one.key, one.device)
            if numerics(self._config, home) != numerics(self._config, one.device):
                raise ConflictError(
                    f"request {one.key} cannot go on at {home}: it is no "
                    f"{numerics(self._config, one.device)}",
                    code="tail.numerics",
                )

    def note_moved(self, move: Move, *, seconds: float) -> None:
        self._given += len(move.decision.freed)
        self._pace.note_move(self._last[1], move.homes, asked_s=self._looked_s, seconds=seconds)

    def _note(self, flights: tuple[InFlight, ...], *, now_s: float) -> None:
        finished = self._fleet().finished_lengths()
        if len(finished) < self._last[0]:
            # Another stream has begun: how the last responses of the one before ended is not seen.
            self._streams += 1
            self._lengths.add((), running=[one.tokens for one in self._last[1]])
            self._pace.restart()
        self._last, self._looked_s = (len(finished), flights), now_s
        self._pace.take(flights, now_s=now_s)

    def _ask(
        self, flights: Sequence[InFlight], nexts: Sequence[Next], speed: Speed, *, now_s: float
    ) -> Move | None:
        finished = self._fleet().finished_lengths()
        history = self._lengths.survival(finished, [one.tokens for one in flights])
        ready = [
            0.0 if _is_ready(one) else one.ready_s
            for one in nexts
            if one.job and one.ready_s is not None
        ]
        rollout = Rollout(
            total=len(flights) + len(finished),
            unfinished=tuple(
                Response(device=one.device, tokens=one.tokens, prompt_tokens=one.prompt_tokens)
                for one in flights
            ),
            devices=tuple(self._device(one, speed) for one in nexts),
            elapsed_s=now_s - self._began_s,
            next_ready_s=min(ready, default=None),
            moved_before=self._given > 0,
            given=self._given,
        )
        found = decide(rollout, history=history, speed=speed, trigger=self._trigger)
        if not found.freed:
            return None
        freed = [one.job for one in nexts if DeviceId.parse(one.device) in found.freed]
        move = Move(
            decision=found,
            homes={flights[index].key: home for index, home in found.homes.items()},
            job=next((job for job in freed if job), ""),
            done=rollout.done,
        )
        self.check(move, flights)
        return move

    def _device(self, one: Next, speed: Speed) -> TailDevice:
        rollout, device = self._config.spec.rollout, DeviceId.parse(one.device)
        return TailDevice(
            id=device,
            hardware=numerics(self._config, device),
            max_seqs=rollout.max_num_seqs,
            kv_tokens=self._kv_tokens,
            next_start_s=max(0.0, _SPARE * one.start_s - self._refills_s(speed)),
        )

    def _refills_s(self, speed: Speed) -> float:
        """Worst case of the refills to come, on one device alone."""
        rollout = self._config.spec.rollout
        left = max(0, rollout.refills + 1 - self._streams)
        waves = math.ceil(rollout.num_samples / rollout.max_num_seqs)
        together = min(rollout.num_samples, rollout.max_num_seqs)
        return left * waves * rollout.max_tokens * speed.of(together)


def _is_ready(one: Next) -> bool:
    return one.waits or (one.ready_s is not None and one.ready_s <= _SOON_S)


def trigger_of(text: str) -> float | None:
    """The fixed share of '0.8'; None for 'gain' and 'off'. UserError for anything else."""
    if text in (OFF, GAIN):
        return None
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 < share < 1.0:
        raise UserError(
            f"a tail trigger of {text!r}",
            hint="write gain, off, or the share of finished responses such as 0.8",
        )
    return share


def numerics(config: DriverConfig, device: DeviceId) -> str:
    """Two devices of one such class compute the same bits: hardware, type and threads are alike,
    and a job's engines are of one build."""
    node = next(node for node in config.nodes if node.id == device.node)
    threads = len(node.cores[device.index]) if node.cores else 0
    host = f" of {node.host}" if node.device_kind == "cpu" else ""
    return f"{node.device_kind}{host}, {threads} threads, {config.spec.rollout.dtype}"


def _kv_tokens(spec: JobSpec) -> int:
    """What the cache of one device holds."""
    rollout = spec.rollout
    whole = rollout.max_num_seqs * (rollout.max_prompt_tokens + rollout.max_tokens)
    if spec.engine is Engine.EMULATED or not spec.model_path:
        return whole
    from rmux.profile.footprint import load_shape

    return rollout.kv_cache_bytes // load_shape(spec.model_path).kv_bytes_per_token(rollout.dtype)
