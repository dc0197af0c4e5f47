"""Emulated decoding, response by response: continuous batching against the clock.

Every response has a length drawn from a file, and its tokens are a pure function of its prompt, its
seed, the weights and their position: one that goes on elsewhere goes on exactly, and what is
missing or there twice shows. Nothing runs in the background: who asks works out what the clock has
made of it since.
"""

from __future__ import annotations

import csv
import functools
import random
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmux.cluster import DeviceId
from rmux.errors import ConflictError, UserError, WorkerError
from rmux.job import EmulatedSpec
from rmux.place.batching import Batching, Moved, Request
from rmux.place.tail import Speed
from rmux.run.driver.engines import (
    FinishedLength,
    InFlight,
    MoveReport,
    Progress,
    Response,
    Sampling,
)

PREFILL = 0.005
"""Time to prefill a token ÷ time of a decoding step of one."""
_PROGRESS_EVERY = 16
"""Responses between two reports."""
_FIRST_TOKENS = 2**20
_LENGTH = re.compile("[1-9][0-9]{0,8}")


@functools.lru_cache(maxsize=8)
def read_lengths(named: str) -> tuple[int, ...]:
    """The tokens in 'file' or 'file:set': one number a line, or CSV with a head whose last column
    they are and whose first is the set. UserError where there is none, or something else."""
    path, _, chosen = named.partition(":")
    try:
        with Path(path).open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"lengths: cannot read {path}: {error}", code="usage.lengths") from error
    if rows and not _LENGTH.fullmatch(rows[0][-1].strip()):
        rows = rows[1:]
    cells = [row[-1].strip() for row in rows if not chosen or row[0] == chosen]
    if not cells or not all(_LENGTH.fullmatch(cell) for cell in cells):
        raise UserError(
            f"{named} does not give lengths, which are whole numbers of tokens",
            hint="one a line, or a CSV file with a head and the lengths in its last column",
            code="usage.lengths",
        )
    return tuple(int(cell) for cell in cells)


def speed_of(spec: EmulatedSpec, *, factor: float = 1.0) -> Speed:
    return Speed(
        step_s=spec.step_s * factor,
        per_seq_s=spec.per_seq_s * factor,
        prefill_s_per_token=PREFILL * (spec.step_s + spec.per_seq_s) * factor,
    )


def tokens_of(prompt: Sequence[int], *, seed: int, version: int, length: int) -> tuple[int, ...]:
    """The first so many tokens of the response."""
    first = zlib.crc32(f"{tuple(prompt)}/{seed}/{version}".encode()) % _FIRST_TOKENS
    return tuple(range(first, first + length))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    prompt: tuple[int, ...]
    seed: int
    version: int
    length: int
    at_limit: bool

    def response(self) -> Response:
        tokens = tokens_of(self.prompt, seed=self.seed, version=self.version, length=self.length)
        return Response(
            prompt_tokens=self.prompt,
            tokens=tokens,
            logprobs=(0.0,) * len(tokens),
            weight_version=self.version,
            finish_reason="length" if self.at_limit else "stop",
        )


class LengthStream:
    """Implements Stream, and what Fleet does while it is open. `version` gives the weights."""

    def __init__(
        self,
        devices: Sequence[DeviceId],
        *,
        lengths: Sequence[int],
        speed: Speed,
        max_seqs: int,
        version: Callable[[], int],
        now_s: Callable[[], float],
        on_progress: Progress | None = None,
    ) -> None:
        self._lengths, self._version, self._now_s = lengths, version, now_s
        self._on_progress = on_progress
        self._changed = threading.Condition()
        self._batching = Batching(speed=speed, max_seqs=max_seqs, now_s=now_s())
        self._batching.join(devices, now_s=now_s())
        self._new: list[Request] = []
        self._asked: dict[int, _Asked] = {}
        self._ended: list[int] = []
        self._finished: list[FinishedLength] = []
        self._tokens = 0
        self._closed = self._stopped = False

    def __enter__(self) -> LengthStream:
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._new.clear()
            self._asked.clear()
            self._ended.clear()
            self._closed = True

    def stop(self) -> None:
        """The engines close: whoever waits is told."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def submit(self, key: int, prompt: Sequence[int], *, sampling: Sampling, seed: int) -> None:
        prompt = tuple(prompt)
        drawn = random.Random(f"{prompt}/{seed}/length").choice(self._lengths)
        length = max(drawn, sampling.min_tokens)
        at_limit = length >= sampling.max_tokens
        with self._changed:
            asked = _Asked(
                prompt=prompt,
                seed=seed,
                version=self._version(),
                length=min(length, sampling.max_tokens),
                at_limit=at_limit,
            )
            if key in self._asked:
                raise UserError(f"request {key} is in flight already", code="usage.key")
            self._asked[key] = asked
            self._new.append(Request(key=key, length=asked.length, prompt_tokens=len(prompt)))

    def next(self, timeout_s: float) -> tuple[int, Response] | None:
        with self._changed:
            until_s = self._now_s() + timeout_s
            self._batching.submit(self._new, now_s=self._now_s())
            self._new = []
            while True:
                self._advance()
                if self._stopped:
                    raise WorkerError("the emulated engines were closed while they worked")
                if self._ended:
                    key = self._ended.pop(0)
                    asked = self._asked.pop(key)
                    break
                now_s = self._now_s()
                if not self._asked or now_s >= until_s:
                    return None
                next_s = self._batching.next_s()
                wait_s = (until_s if next_s is None else min(next_s, until_s)) - now_s
                self._changed.wait(min(max(wait_s, 0.0), threading.TIMEOUT_MAX))
        self._tell()
        return key, asked.response()

    def in_flight(self) -> tuple[InFlight, ...]:
        with self._changed:
            if self._closed:
                return ()
            self._advance()
            found = list(self._batching.in_flight(now_s=self._now_s()))
            devices = self._batching.devices
            return tuple(
                InFlight(
                    key=request.key,
                    device=device or devices[index % len(devices)],
                    prompt_tokens=request.prompt_tokens,
                    tokens=int(request.tokens),
                )
                for index, (device, request) in enumerate(found)
                if devices or device is not None
            )

    def finished_lengths(self) -> tuple[FinishedLength, ...]:
        with self._changed:
            if not self._closed:
                self._advance()
            return tuple(self._finished)

    def leave(self, devices: Sequence[DeviceId], homes: Mapping[int, DeviceId]) -> MoveReport:
        with self._changed:
            self._advance()
            begun_s = self._now_s()
            staying = set(self._batching.devices) - set(devices)
            if not staying and self._asked and not self._closed:
                raise ConflictError("no other worker is awake", code="fleet.leave")
            moved = self._batching.leave(devices, homes=homes, now_s=begun_s)
            self._changed.notify_all()
            return _report(moved, seconds=self._now_s() - begun_s)

    def join(self, devices: Iterable[DeviceId]) -> int:
        with self._changed:
            self._advance()
            before = self._places()
            self._batching.join(devices, now_s=self._now_s())
            self._changed.notify_all()
            return sum(1 for key, device in self._places().items() if before.get(key) != device)

    # -- under the lock

    def _advance(self) -> None:
        for _, key in self._batching.advance(self._now_s()):
            asked = self._asked.get(key)
            if asked is not None:
                self._ended.append(key)
                self._tokens += asked.length
                length = FinishedLength(tokens=asked.length, at_limit=asked.at_limit)
                self._finished.append(length)

    def _places(self) -> dict[int, DeviceId]:
        found = self._batching.in_flight(now_s=self._now_s())
        return {request.key: device for device, request in found if device is not None}

    def _tell(self) -> None:
        done = len(self._finished)
        if self._on_progress is None or (done % _PROGRESS_EVERY and self._asked):
            return
        total = done + len(self._asked) - len(self._ended)
        self._on_progress({"responses_done": done, "responses": total, "tokens": self._tokens})


def _report(moved: Moved, *, seconds: float) -> MoveReport:
    return MoveReport(
        requests=moved.requests,
        tokens_carried=moved.tokens_carried,
        tokens_recomputed=moved.tokens_recomputed,
        exact=moved.requests,
        seconds=seconds,
    )
