"""Identifiers: typed strings, sortable by the time they were made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NewType

JobId = NewType("JobId", str)
GroupId = NewType("GroupId", str)
ProfileId = NewType("ProfileId", str)
NodeId = NewType("NodeId", str)
PoolName = NewType("PoolName", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base 32, lower case

IdSource = Callable[[str], str]
"""Makes a fresh id from its one-letter kind, 'j' -> 'j-01kb3v7r5w8k2'."""


def fresh_id(kind: str) -> str:
    """Time-sortable and unique: 9 characters of milliseconds, 4 random ones."""
    return f"{kind}-{_encode(int(time.time() * 1000), 9)}{_encode(random_bits(20), 4)}"


def random_bits(count: int) -> int:
    return int.from_bytes(os.urandom((count + 7) // 8), "big") & ((1 << count) - 1)


def numbered_ids() -> IdSource:
    """Repeatable ids for tests and replays: 'j-0001', 'j-0002', 'g-0001' …"""
    counts: dict[str, int] = {}

    def make(kind: str) -> str:
        counts[kind] = counts.get(kind, 0) + 1
        return f"{kind}-{counts[kind]:04d}"

    return make


def _encode(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
