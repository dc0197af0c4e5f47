"""What user code hands back, judged in its own process; needs the standard library only."""

from __future__ import annotations

import math
import numbers
import sys
import traceback
from typing import Any

MAX_TEXT = 2**20
"""Characters of the longest text that is passed on."""

MAX_NUMBER = 1e18
"""Largest reward, either way: its square still fits the trainer's float32."""

_MAX_REASON = 500


def number_of(value: Any) -> float:
    """The number that `value` is, finite and of at most MAX_NUMBER. ValueError for anything else.

    A truth value is no number: a verifier that answers yes or no has to say what that is worth.
    Text is none either, whatever it spells.
    """
    real = isinstance(value, numbers.Real) or hasattr(value, "__float__")
    if real and truth_of(value) is None:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{number} is not a finite number")
        if abs(number) > MAX_NUMBER:
            raise ValueError(f"{number:g} is beyond ±{MAX_NUMBER:g}")
        return number
    raise ValueError(f"{shown(value)} is not a number")


def truth_of(value: Any) -> bool | None:
    """The truth value that `value` is, numpy's too; None for anything else."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    return None


def text_of(value: Any) -> str:
    """The text that `value` is. ValueError for anything else and for more than MAX_TEXT."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    if len(value) > MAX_TEXT:
        raise ValueError(f"a text of {len(value)} characters; at most {MAX_TEXT} are passed on")
    return value


def shown(value: Any) -> str:
    """A short name of a value that is not what it should be."""
    if value is None:
        return "None"
    try:
        text = repr(value) if not isinstance(value, (str, bytes)) else repr(value[:60])
    except Exception:  # noqa: BLE001 - user code again
        text = "a value"
    return f"{text[:60]} of type {type(value).__name__}"


def reason_of_failure() -> str:
    """The last line of the exception that is being handled, cut to a length for a log."""
    kind, error, _ = sys.exc_info()
    try:
        text = traceback.format_exception_only(kind, error)[-1].strip()
    except Exception:  # noqa: BLE001 - an exception that cannot print itself
        text = getattr(kind, "__name__", "an exception")
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
