import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux import units
from rmux.errors import QuantityError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400), ("250ms", 0.25), (" 1.5 s ", 1.5)],
)
def test_a_duration_is_read_in_seconds(text, seconds):
    assert units.parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["90", "", "s", "5 parsecs", "-1s", "1e3s", "nan s", "1,5s"])
def test_a_duration_without_a_known_unit_is_refused_with_examples(text):
    with pytest.raises(QuantityError, match="is not a duration") as caught:
        units.parse_duration_s(text)
    assert "90s" in str(caught.value.hint)


def test_binary_and_decimal_sizes_differ():
    assert units.parse_size_bytes("1GiB") == 2**30
    assert units.parse_size_bytes("1GB") == 10**9
    with pytest.raises(QuantityError):
        units.parse_size_bytes("1gb")


def test_a_rate_is_in_bits():
    assert units.parse_rate_bps("20Gbps") == 20e9
    with pytest.raises(QuantityError):
        units.parse_rate_bps("20GB/s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (float("inf"), "-"),
        (0.0, "0 ms"),
        (6e-6, "6 us"),
        (-1.29, "-1.29 s"),
        (0.012, "12 ms"),
        (3.42, "3.42 s"),
        (310, "5m10s"),
        (7500, "2h05m"),
        (151200, "1d18h"),
    ],
)
def test_a_duration_is_printed_for_people(seconds, text):
    assert units.format_duration(seconds) == text


def test_memory_is_printed_in_binary_units_and_links_both_ways():
    assert units.format_bytes(1536 * 2**20) == "1.5 GiB"
    assert units.format_bytes(1020 * 2**20) == "1020 MiB"
    assert units.format_bytes(999.6 * 2**20) == "1000 MiB"
    assert units.format_bytes(12) == "12 B"
    assert units.format_bytes(None) == "-"
    assert units.format_rate(20e9) == "2.5 GB/s (20 Gbit/s)"
    assert units.format_usd_per_h(57.039) == "57.04 USD/h"


def outcome(text):
    """What reading the text as a size leads to: a number, or the message of a plain error."""
    try:
        return units.parse_size_bytes(text)
    except QuantityError as error:
        return error.message


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_either_a_size_or_a_plain_error(text):
    found = outcome(text)
    assert found >= 0 if isinstance(found, int) else found.endswith("is not a size")
