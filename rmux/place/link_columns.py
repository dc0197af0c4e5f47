"""The worst syncs of many jobs on one link at once: see `link`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rmux.place.index_needs import Needs

_Floats = npt.NDArray[np.float64]


def worst_of_many_s(transfers: Sequence[Needs], rate_bps: float, *, rounds: int) -> list[float]:
    """`link.worst_syncs_s`, with the overlaps counted for the longest sync of all, seconds."""
    bits = np.array([one.bits for one in transfers])
    sync_s = np.array([one.sync_s for one in transfers])
    between_s = np.array([one.expected_s for one in transfers])
    limit_s = np.array([one.longest_sync_s for one in transfers])
    sends = bits > 0
    between_s = np.where(between_s > 0, between_s, np.nan)
    alone_s = np.maximum(sync_s, bits / rate_bps)
    found_s = sync_s
    longest_s = 0.0
    for _ in range(rounds):
        repeats = 1 + np.floor(longest_s / between_s)
        sizes = np.where(np.isnan(repeats), bits.max(), bits * repeats)
        found_s = np.where(sends, _worst_s(bits, alone_s, sizes, rate_bps), sync_s)
        # Whoever is over his limit breaks his promise by then: his own wait counts no further.
        again_s = float(np.minimum(found_s, np.maximum(limit_s, 0.0)).max())
        if _same(again_s, longest_s, between_s):
            return [float(value) for value in found_s]
        longest_s = max(longest_s, again_s)
    return [float(value) for value in found_s + np.maximum(limit_s, 0.0)]


def _same(one_s: float, other_s: float, between_s: _Floats) -> bool:
    """Whether both count the same overlaps."""
    return bool(
        np.array_equal(np.floor(one_s / between_s), np.floor(other_s / between_s), equal_nan=True)
    )


def _worst_s(bits: _Floats, alone_s: _Floats, sizes: _Floats, rate_bps: float) -> _Floats:
    """W of each job where the others move `sizes`; its own size is its bits."""
    ordered = np.sort(sizes)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    count = len(bits)
    with np.errstate(divide="ignore", invalid="ignore"):
        crowd = np.maximum(0, np.floor(rate_bps * alone_s / bits - 1) + 1)
    crowd = np.where(np.isfinite(crowd), crowd, count).astype(np.int64)
    own = np.searchsorted(ordered, sizes)
    at = count - crowd
    at = np.where(at > own, at, at - 1)
    kth = np.where(at >= 0, ordered[np.clip(at, 0, count - 1)], 0.0)
    shared = np.where(crowd > 0, np.minimum(bits, kth), bits)
    smaller = np.searchsorted(ordered, shared)
    moved = sums[smaller] + shared * (count - smaller)
    with np.errstate(divide="ignore", invalid="ignore"):
        found_s: _Floats = (bits - shared) / bits * alone_s + moved / rate_bps
    return found_s
