"""How long responses get: what a job's own history says of those still unfinished."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_GRID = 48
"""Points at which the spread of the longest rest is evaluated."""


@dataclass(frozen=True, slots=True)
class Survival:
    """P(L > x) by Kaplan and Meier's product limit, L in tokens.

    Responses stopped before their end (a lower limit then, an abort, still running) count as being
    at least that long. Beyond the history nothing is known: there every response goes to the limit.
    """

    tokens: tuple[int, ...]
    """Lengths at which responses ended, ascending, each once; all below `limit_tokens`."""
    beyond: tuple[float, ...]
    """P(L > t) after each of them."""
    limit_tokens: int

    @staticmethod
    def of(ended: Iterable[int], *, limit_tokens: int, stopped: Iterable[int] = ()) -> Survival:
        """From the lengths of finished responses and of stopped ones."""
        ends, stops = Counter(ended), Counter(stopped)
        at_risk = ends.total() + stops.total()
        tokens: list[int] = []
        beyond: list[float] = []
        alive = 1.0
        for length in sorted(ends.keys() | stops.keys()):
            if length >= limit_tokens:
                break
            if ends[length]:
                alive *= 1.0 - ends[length] / at_risk
                tokens.append(length)
                beyond.append(alive)
            at_risk -= ends[length] + stops[length]
        return Survival(tuple(tokens), tuple(beyond), limit_tokens)

    def at(self, tokens: float) -> float:
        """P(L > tokens); 0 from the limit on."""
        if tokens >= self.limit_tokens:
            return 0.0
        place = bisect.bisect_right(self.tokens, tokens)
        return self.beyond[place - 1] if place else 1.0

    def left(self, so_far: int, more: float) -> float:
        """P(L > so_far + more | L > so_far)."""
        if so_far + more >= self.limit_tokens:
            return 0.0
        alive = self.at(so_far)
        return self.at(so_far + more) / alive if alive > 0.0 else 1.0

    def until(self, so_far: int, share: float) -> float:
        """Tokens more until no more than this share of those that are so long is left."""
        beyond = share * self.at(so_far)
        place = bisect.bisect_left(self.beyond, -beyond, key=lambda alive: -alive)
        end = self.tokens[place] if place < len(self.tokens) else self.limit_tokens
        return float(max(0, end - so_far))

    def mean_left(self, so_far: int) -> float:
        """E[L - so_far | L > so_far], tokens."""
        return self.longest_left([so_far])

    def longest_left(self, so_far: Sequence[int]) -> float:
        """Expected tokens until the last of these unfinished responses ends: the integral of
        1 - Π P(that one has ended) over the tokens to come."""
        counts = Counter(so_far)
        points = self._points(counts)
        total = 0.0
        for here, there in itertools.pairwise(points):
            none_left = 1.0
            for tokens, count in counts.items():
                none_left *= (1.0 - self.left(tokens, (here + there) / 2)) ** count
            total += (there - here) * (1.0 - none_left)
        return total

    def _points(self, counts: Counter[int]) -> list[float]:
        """Where the probabilities may step, thinned out to what is worth its time."""
        most = self.limit_tokens - min(counts, default=self.limit_tokens)
        steps = {
            float(end - tokens)
            for tokens in counts
            for end in self.tokens[bisect.bisect_right(self.tokens, tokens) :]
        }
        inner = sorted(steps)[:: max(1, len(steps) // _GRID)]
        return [0.0, *(step for step in inner if 0.0 < step < most), float(max(0, most))]
