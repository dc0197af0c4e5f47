"""What a job knows of its own responses: how long they get, and how fast they grow."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rmux.cluster import DeviceId
from rmux.place.lengths import Survival
from rmux.place.tail import Speed
from rmux.run.driver.engines import FinishedLength, InFlight

_log = logging.getLogger(__name__)

_KEPT = 4096
_FADE = 0.99
"""What an observation still counts after the next one."""
_PREFILL = 0.005
"""Time to prefill a token ÷ time of a decoding step, until moves have been timed."""
_MOVE_S = 0.05
"""Of a move besides, until one has been timed."""
_RESUMED_TOKENS = 4
"""A moved response that has so many more goes on: what it took until then is known."""


class Lengths:
    """The lengths of the newest responses of past iterations, kept in a file across attempts."""

    def __init__(self, path: Path, *, limit_tokens: int) -> None:
        self._path, self._limit_tokens = path, limit_tokens
        self._ended: deque[int] = deque(maxlen=_KEPT)
        self._stopped: deque[int] = deque(maxlen=_KEPT)
        """Of these it is known only that they are at least so long."""
        try:
            kept = json.loads(path.read_text())
            self._ended.extend(int(tokens) for tokens in kept["ended"])
            self._stopped.extend(int(tokens) for tokens in kept["stopped"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the lengths of earlier responses are lost: %s", error)

    def __len__(self) -> int:
        return len(self._ended) + len(self._stopped)

    def add(self, finished: Iterable[FinishedLength], *, running: Iterable[int] = ()) -> None:
        """Responses of a stream that is over, `running` those whose end was not seen."""
        for one in finished:
            (self._ended if self._is_end(one) else self._stopped).append(one.tokens)
        self._stopped.extend(running)

    def save(self) -> None:
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        text = json.dumps({"ended": list(self._ended), "stopped": list(self._stopped)})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(text)
        scratch.replace(self._path)

    def survival(self, finished: Iterable[FinishedLength], running: Iterable[int]) -> Survival:
        """With those of the stream under way."""
        now = tuple(finished)
        ended = [one.tokens for one in now if self._is_end(one)]
        stopped = [one.tokens for one in now if not self._is_end(one)]
        return Survival.of(
            [*self._ended, *ended],
            limit_tokens=self._limit_tokens,
            stopped=[*self._stopped, *stopped, *running],
        )

    def _is_end(self, one: FinishedLength) -> bool:
        return not one.at_limit or one.tokens >= self._limit_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resuming:
    """What moved to one device and is prefilled there."""

    from_s: float
    tokens: Mapping[int, int]
    """Of each response, by its key."""
    prefills: int
    """Tokens, with the prompts'."""


class Pace:
    """Seconds per token of each response, by how many decode together on a device."""

    def __init__(self) -> None:
        self._seen: dict[DeviceId, tuple[float, dict[int, int]]] = {}
        self._by_width: dict[int, tuple[float, float]] = {}
        """Responses that decoded together -> (seconds, steps)."""
        self._move_s, self._prefill = _MOVE_S, _PREFILL
        self._resuming: dict[DeviceId, _Resuming] = {}

    def restart(self) -> None:
        """What ran before is over, or runs elsewhere from now on."""
        self._seen.clear()
        self._resuming.clear()

    def take(self, flights: Iterable[InFlight], *, now_s: float) -> None:
        """Look at all unfinished responses again; those that only wait gain nothing."""
        on: dict[DeviceId, dict[int, int]] = {}
        for one in flights:
            on.setdefault(one.device, {})[one.key] = one.tokens
        self._note_resumed(on, now_s=now_s)
        for device, now in on.items():
            before_s, before = self._seen.get(device, (now_s, {}))
            gains = [tokens - before.get(key, tokens) for key, tokens in now.items()]
            steps = max(gains, default=0)
            if device in self._resuming or (before and steps <= 0):
                continue  # nothing was flushed since, or it prefills
            self._seen[device] = (now_s, now)
            if steps > 0:
                self._note(sum(gain > 0 for gain in gains), now_s - before_s, steps)
        for device in self._seen.keys() - on.keys():
            del self._seen[device]

    def note_move(
        self,
        flights: Iterable[InFlight],
        homes: Mapping[int, DeviceId],
        *,
        asked_s: float,
        seconds: float,
    ) -> None:
        """Of `flights`, as they were at `asked_s`, some go on at `homes`; the move took `seconds`.
        What their prefill takes shows when they have got further."""
        self.restart()
        if not homes:
            return
        self._move_s = (self._move_s + seconds) / 2
        to: dict[DeviceId, list[InFlight]] = {}
        for one in flights:
            if one.key in homes:
                to.setdefault(homes[one.key], []).append(one)
        for device, moved in to.items():
            self._resuming[device] = _Resuming(
                from_s=asked_s + seconds,
                tokens={one.key: one.tokens for one in moved},
                prefills=sum(one.prompt_tokens + one.tokens for one in moved),
            )

    def speed(self) -> Speed | None:
        """Least squares over the widths seen; None while nothing was."""
        found = _line({width: (s / n, n) for width, (s, n) in self._by_width.items()})
        if found is None:
            return None
        step_s, per_seq_s = found
        return Speed(
            step_s=step_s,
            per_seq_s=per_seq_s,
            prefill_s_per_token=self._prefill * (step_s + per_seq_s),
            move_s=self._move_s,
        )

    def _note_resumed(self, on: Mapping[DeviceId, Mapping[int, int]], *, now_s: float) -> None:
        speed = self.speed()
        for device, moved in list(self._resuming.items()):
            here = on.get(device, {})
            gains = [here[key] - tokens for key, tokens in moved.tokens.items() if key in here]
            if not gains or speed is None:
                del self._resuming[device]  # all of them ended before anybody looked
            elif max(gains) >= _RESUMED_TOKENS:
                del self._resuming[device]
                paused_s = now_s - moved.from_s - max(gains) * speed.of(len(here))
                rate = max(0.0, paused_s) / max(1, moved.prefills)
                self._prefill = (self._prefill + rate / speed.of(1)) / 2

    def _note(self, width: int, seconds: float, steps: int) -> None:
        faded = {w: (s * _FADE, n * _FADE) for w, (s, n) in self._by_width.items() if n > 0.5}
        seconds_before, steps_before = faded.get(width, (0.0, 0.0))
        faded[width] = (seconds_before + seconds, steps_before + steps)
        self._by_width = faded


def _line(points: Mapping[int, tuple[float, float]]) -> tuple[float, float] | None:
    """(a, b) of y = a + b x, both at least 0, by weighted least squares; x -> (y, weight)."""
    total = sum(weight for _, weight in points.values())
    if total <= 0:
        return None
    mean_x = sum(weight * x for x, (_, weight) in points.items()) / total
    mean_y = sum(weight * y for y, weight in points.values()) / total
    spread = sum(weight * (x - mean_x) ** 2 for x, (_, weight) in points.items())
    if spread <= 0:
        return mean_y, 0.0
    slope = sum(weight * (x - mean_x) * (y - mean_y) for x, (y, weight) in points.items()) / spread
    slope = max(0.0, min(slope, mean_y / mean_x))
    return max(0.0, mean_y - slope * mean_x), slope
