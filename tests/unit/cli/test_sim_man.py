"""rmux-trace(5) says what the loader reads, and its examples can be read."""

import io
import re
from pathlib import Path

import pytest

import rmux
from rmux.place.sim import columns
from rmux.place.sim.trace import read

PAGE = (Path(rmux.__file__).parent.parent / "man" / "man5" / "rmux-trace.5").read_text()
PLAIN = PAGE.replace("\\-", "-").replace("\\&", "")


@pytest.mark.parametrize("key", columns.KEYS)
def test_every_column_and_every_other_header_of_it_stands_in_the_page(key):
    assert re.search(rf"^\.BR? .*\b{key}\b", PLAIN, re.MULTILINE)
    for header in columns.other_headers(key):
        assert re.search(rf"\b{header}\b", PLAIN), header


def test_the_examples_are_the_same_two_jobs_as_csv_and_as_json():
    csv, lines = re.findall(r"^\.EX\n(.*?)^\.EE$", PLAIN, re.MULTILINE | re.DOTALL)
    for text in (csv, lines):
        trace = read(io.BytesIO(text.encode()), name="example")
        assert (list(trace.jobs), trace.tenants) == (["math-7b", "code-14b"], ["blue", "green"])
        assert list(trace["slo"]) == [1.5, 2]
        assert trace["duration_s"] == pytest.approx([36_000, 86_400], rel=0.02)


def test_the_units_and_the_largest_file_stand_in_the_page():
    for suffix in columns.UNITS_S:
        assert suffix in PLAIN
    assert "five million rows" in PLAIN
