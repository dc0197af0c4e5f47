"""Which worker gets which request: by tokens and counts, never by time.

So the same prompts and seeds meet the same batches, whatever else the host is doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmux.cluster import DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """An unfinished request of a worker, as routing sees it."""

    key: int
    tokens: int
    """Of its response so far."""
    version: int | None
    """Weights it must be continued with; None while it has no token."""


class Loads:
    """Tokens that each worker may still have to handle; the least loaded is the next choice."""

    def __init__(self, tokens: Mapping[DeviceId, int], versions: Mapping[DeviceId, int]) -> None:
        self._tokens = dict(tokens)
        self._versions = dict(versions)

    def choose(
        self,
        size_tokens: int,
        *,
        version: int | None = None,
        home: DeviceId | None = None,
        avoid: Sequence[DeviceId] = (),
    ) -> DeviceId | None:
        """A worker for a request, now counted there. None when none holds its version.

        `home` is taken if it can be; `avoid` only when nothing else is left. Of equals the first.
        """
        able = [one for one in self._tokens if version in (None, self._versions[one])]
        if not able:
            return None
        if home in able:
            chosen = home
        else:
            others = [one for one in able if one not in avoid]
            chosen = min(others or able, key=self._tokens.__getitem__)
        assert chosen is not None
        self._tokens[chosen] += size_tokens
        return chosen


def even_out(
    queues: Mapping[DeviceId, Sequence[Queued]],
    joiners: Iterable[DeviceId],
    *,
    versions: Mapping[DeviceId, int],
    max_num_seqs: int,
) -> dict[int, DeviceId]:
    """Which requests the joiners take over, key to joiner.

    A queue is in the order its worker serves it, `max_num_seqs` at a time. Those that wait go
    first, the last of the longest queue before others; running ones only where the donor has at
    least two more than the joiner, and then those with the fewest tokens to compute again.
    """
    left = {device: list(queue) for device, queue in queues.items()}
    order = list(left)
    joined = [one for one in joiners if one in left]
    moves: dict[int, DeviceId] = {}
    for waiting_only in (True, False):
        while joined:
            taker = min(joined, key=lambda one: (len(left[one]), order.index(one)))
            found = _give(left, taker, joined, versions, max_num_seqs, waiting_only=waiting_only)
            if found is None:
                break
            moves[found.key] = taker
            left[taker].append(found)
    return moves


def _give(
    left: dict[DeviceId, list[Queued]],
    taker: DeviceId,
    joined: Sequence[DeviceId],
    versions: Mapping[DeviceId, int],
    max_num_seqs: int,
    *,
    waiting_only: bool,
) -> Queued | None:
    """Take the next request from the fullest donor that has one for the taker."""
    donors = [one for one in left if one not in joined and len(left[one]) >= len(left[taker]) + 2]
    for donor in sorted(donors, key=lambda one: -len(left[one])):
        queue = left[donor]
        open_ = queue[max_num_seqs:] if waiting_only else queue
        able = [each for each in open_ if each.version in (None, versions[taker])]
        if able:
            chosen = able[-1] if waiting_only else min(reversed(able), key=lambda e: e.tokens)
            queue.remove(chosen)
            return chosen
    return None
