"""Continuous batching on several devices, as arithmetic: who decodes where, and when each ends.

Emulated engines run it against the clock and the simulator through virtual time, so that what one
foretells the other does. A device decodes up to `max_seqs` requests together, each one token per
step of `Speed.of(requests)` seconds; others wait for a place. A request that begins, or goes on
elsewhere, is prefilled, and its device decodes nothing meanwhile.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rmux.cluster import DeviceId
from rmux.errors import InternalError
from rmux.place.tail import Speed

_CLOSE = 1e-6
"""Tokens: a request this close to its end has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """To be decoded from `tokens` to `length`; parts of tokens count."""

    key: int
    length: float
    prompt_tokens: int = 0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What it took to take requests elsewhere."""

    requests: int = 0
    tokens_carried: int = 0
    """Generated before."""
    tokens_recomputed: int = 0
    """Prefilled again: those and their prompts."""

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            requests=self.requests + other.requests,
            tokens_carried=self.tokens_carried + other.tokens_carried,
            tokens_recomputed=self.tokens_recomputed + other.tokens_recomputed,
        )


@dataclass(slots=True)
class _Device:
    id: DeviceId
    at_s: float
    """Until when it is worked out; later than now while it wakes or prefills."""
    decoded: float = 0.0
    """Tokens that a request here since the begin would have got."""
    running: dict[int, tuple[Request, float]] = field(default_factory=dict)
    """Key -> the request as it came, and `decoded` when it did."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """Heap of (`decoded` at its end, key); those of requests that went away are void."""

    def tokens(self, key: int) -> float:
        request, since = self.running[key]
        return min(request.length, request.tokens + self.decoded - since)

    def first_end(self) -> tuple[float, int] | None:
        while self.ends:
            end, key = self.ends[0]
            if key in self.running and self._end(key) == end:
                return end, key
            heapq.heappop(self.ends)
        return None

    def take(self, request: Request) -> None:
        self.running[request.key] = (request, self.decoded)
        heapq.heappush(self.ends, (self._end(request.key), request.key))

    def give(self, key: int) -> Request:
        tokens = self.tokens(key)
        return replace(self.running.pop(key)[0], tokens=tokens)

    def _end(self, key: int) -> float:
        request, since = self.running[key]
        return since + request.length - request.tokens


class Batching:
    """Instants are seconds on any clock and must not go back. Not for several threads."""

    def __init__(self, *, speed: Speed, max_seqs: int, now_s: float = 0.0) -> None:
        self.speed, self.max_seqs = speed, max_seqs
        self._now_s = now_s
        self._devices: dict[DeviceId, _Device] = {}
        self._waiting: deque[Request] = deque()
        self._homes: dict[int, DeviceId] = {}
        """Of those waiting for one device only."""
        self._ended: list[tuple[float, int]] = []

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        return tuple(self._devices)

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + sum(len(one.running) for one in self._devices.values())

    def submit(self, requests: Iterable[Request], *, now_s: float) -> None:
        """Onto the devices that have least, in this order; what finds no place waits."""
        self._work(now_s)
        self._waiting.extend(requests)
        self._admit()

    def advance(self, now_s: float) -> list[tuple[float, int]]:
        """(instant, key) of those that ended since, in the order in which they did."""
        self._work(now_s)
        ended, self._ended = sorted(self._ended), []
        return ended

    def next_s(self) -> float | None:
        """When the next request ends if nothing changes; None when none will."""
        ends = [s for one in self._devices.values() if (s := self._end_s(one)) is not None]
        return min(ends, default=None)

    def join(self, devices: Iterable[DeviceId], *, now_s: float, ready_s: float = 0.0) -> Moved:
        """They take requests from now on and decode from `ready_s` on: first those that wait, then
        running ones where fewer on a device go faster."""
        self._work(now_s)
        new = [device for device in devices if device not in self._devices]
        for device in new:
            self._devices[device] = _Device(device, max(now_s, ready_s))
        self._admit()
        return self._even_out(new) if self.speed.per_seq_s > 0 else Moved()

    def leave(
        self,
        devices: Iterable[DeviceId],
        *,
        now_s: float,
        homes: Mapping[int, DeviceId] | None = None,
    ) -> Moved:
        """Their requests go on at their homes, or else where there is least; those that find no
        place wait before all others."""
        self._work(now_s)
        leaving = [self._devices.pop(one) for one in dict.fromkeys(devices) if one in self._devices]
        moving = [one.give(key) for one in leaving for key in list(one.running)]
        for request in reversed(moving):
            self._waiting.appendleft(request)
            home = (homes or {}).get(request.key)
            if home in self._devices:
                self._homes[request.key] = home
        gone = {one.id for one in leaving}
        self._homes = {key: home for key, home in self._homes.items() if home not in gone}
        hit = self._admit()
        for device in hit if moving else ():
            device.at_s += self.speed.move_s
        return _moved(moving)

    def abort(self, keys: Iterable[int], *, now_s: float) -> None:
        """They are dropped, wherever they are."""
        self._work(now_s)
        gone = set(keys)
        self._waiting = deque(one for one in self._waiting if one.key not in gone)
        for device in self._devices.values():
            for key in gone & device.running.keys():
                device.give(key)
        self._admit()

    def in_flight(self, *, now_s: float) -> Iterator[tuple[DeviceId | None, Request]]:
        """Every unfinished one with its tokens so far, and where it decodes; None: it waits."""
        self._work(now_s)
        for device in self._devices.values():
            for key, (request, _) in device.running.items():
                yield device.id, replace(request, tokens=device.tokens(key))
        for request in self._waiting:
            yield self._homes.get(request.key), request

    # -- the rest changes devices at an instant

    def _work(self, now_s: float) -> None:
        """Up to there, end by end: an end leaves a place to one that waits."""
        if now_s < self._now_s - 1e-9:
            raise InternalError(f"batching cannot go back from {self._now_s} to {now_s} s")
        while True:
            ends = [
                (s, one) for one in self._devices.values() if (s := self._end_s(one)) is not None
            ]
            end_s, first = min(ends, key=lambda found: found[0], default=(math.inf, None))
            if first is None or end_s > now_s:
                break
            self._go(end_s)
            found = first.first_end()
            assert found is not None
            first.give(found[1])
            self._ended.append((end_s, found[1]))
            if self._waiting:
                self._admit()
        self._go(max(now_s, self._now_s))

    def _go(self, now_s: float) -> None:
        self._now_s = now_s
        for device in self._devices.values():
            if now_s > device.at_s:
                if device.running:
                    device.decoded += (now_s - device.at_s) / self.speed.of(len(device.running))
                device.at_s = now_s

    def _end_s(self, device: _Device) -> float | None:
        found = device.first_end()
        if found is None:
            return None
        left = found[0] - device.decoded
        if left <= _CLOSE:
            return max(device.at_s, self._now_s)
        return device.at_s + left * self.speed.of(len(device.running))

    def _admit(self) -> list[_Device]:
        """Give places to those that wait; the devices that took one."""
        hit: dict[DeviceId, _Device] = {}
        stay: deque[Request] = deque()
        while self._waiting:
            request = self._waiting.popleft()
            home = self._homes.get(request.key)
            open_ = [
                one
                for one in self._devices.values()
                if len(one.running) < self.max_seqs and home in (None, one.id)
            ]
            if open_:
                device = min(open_, key=lambda one: len(one.running))
                self._homes.pop(request.key, None)
                self._put(device, request)
                hit[device.id] = device
                continue
            stay.append(request)
            if home is None:
                break
        stay.extend(self._waiting)
        self._waiting = stay
        return list(hit.values())

    def _put(self, device: _Device, request: Request) -> None:
        device.take(request)
        device.at_s = max(device.at_s, self._now_s)
        device.at_s += self.speed.prefill_s_per_token * (request.prompt_tokens + request.tokens)

    def _even_out(self, new: Iterable[DeviceId]) -> Moved:
        """Onto new devices, from where most run, those with the fewest tokens to prefill again."""
        moved = Moved()
        targets = [self._devices[device] for device in new]
        while targets:
            most = max(self._devices.values(), key=lambda one: len(one.running))
            least = min(targets, key=lambda one: len(one.running))
            if len(most.running) - len(least.running) < 2:
                break
            key = min(most.running, key=lambda key: (most.tokens(key), key))
            request = most.give(key)
            self._put(least, request)
            moved += _moved([request])
        return moved


def _moved(requests: Iterable[Request]) -> Moved:
    known = list(requests)
    carried = sum(int(one.tokens) for one in known)
    return Moved(
        requests=len(known),
        tokens_carried=carried,
        tokens_recomputed=carried + sum(one.prompt_tokens for one in known if one.tokens >= 1),
    )
