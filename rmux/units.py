"""Parse and print quantities; inside the code every number is SI and named with its unit."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping

from rmux.errors import QuantityError

_DURATION_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_RATE_BPS = {"bps": 1.0, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9, "Tbps": 1e12}
_MOST = {"duration": (10 * 365 * 86400.0, "3650d"), "size": (2.0**62, "4194304TiB")}
"""Largest value of a kind, and how to write it: beyond it only a slip of the hand is meant."""
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def parse_duration_s(text: str) -> float:
    """Seconds of '90s', '5m', '2h', '1d' or '250ms'; a bare number is refused.

    QuantityError beyond ten years.
    """
    return _parse(text, _DURATION_S, "duration", "90s, 5m, 2h")


def parse_size_bytes(text: str) -> int:
    """Bytes of '64GiB' or '10GB'; a bare number is refused.

    QuantityError beyond 2**62 bytes.
    """
    return round(_parse(text, _SIZE_BYTES, "size", "64MiB, 8GiB, 10GB"))


def parse_rate_bps(text: str) -> float:
    """Bits per second of '20Gbps'; a bare number is refused."""
    return _parse(text, _RATE_BPS, "rate", "200Mbps, 20Gbps")


def _parse(text: str, factors: Mapping[str, float], what: str, examples: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in factors:
        raise QuantityError(
            f"{text!r} is not a {what}", hint=f"write a number and a unit, such as {examples}"
        )
    value = float(match[1]) * factors[match[2]]
    most, written = _MOST.get(what, (sys.float_info.max, "1.8e308bps"))
    if value > most:
        raise QuantityError(f"{_short(text)} is too large a {what}", hint=f"at most {written}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:36]}…")


def format_duration(seconds: float | None) -> str:
    """'6 us', '12 ms', '3.42 s', '5m10s', '2h05m', '1d18h'; '-' for none."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
    if seconds < 86400:
        return f"{int(seconds) // 3600}h{int(seconds) % 3600 // 60:02d}m"
    return f"{int(seconds) // 86400}d{int(seconds) % 86400 // 3600:02d}h"


def format_bytes(count: int | float | None) -> str:
    """Memory in binary units, '1.5 GiB'; '-' for none."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            # Three digits, but of 1000 to 1023 all four: never in powers of ten.
            whole = unit == "B" or abs(value) >= 999.5
            return f"{value:.0f} {unit}" if whole else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def format_rate(bits_per_s: float | None) -> str:
    """A link's rate both ways users say it: '2.5 GB/s (20 Gbit/s)'."""
    if bits_per_s is None:
        return "-"
    return f"{bits_per_s / 8e9:.3g} GB/s ({bits_per_s / 1e9:.3g} Gbit/s)"


def format_usd_per_h(usd_per_h: float) -> str:
    """Money rounded only here: '57.04 USD/h'."""
    return f"{usd_per_h:.2f} USD/h"
