import pytest

from rmux.errors import SpecError
from rmux.toml_lines import dotted, line_of, nearest, read_toml

TEXT = '''\
name = "a"
text = """
rollout = 1
"""

[rollout]
devices = 1
"max tokens" = 2
inner.deep = 3

[[links]]
from = "a"
[[links]]
from = "b"   # [not.a.header]
[pools.train]
[[pools.train.nodes]]
name = "x"
[[pools.train.nodes]]
name = "y"
'''


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("name",), 1),
        (("rollout",), 6),
        (("rollout", "devices"), 7),
        (("rollout", "max tokens"), 8),
        (("rollout", "inner", "deep"), 9),
        (("links", 0, "from"), 12),
        (("links", 1, "from"), 14),
        (("links", 1, "to"), 13),
        (("pools", "train", "nodes", 1, "name"), 19),
        (("pools", "train", "kind"), 15),
        (("absent",), None),
    ],
)
def test_the_line_of_a_key_is_found_or_that_of_its_table(location, line):
    assert line_of(TEXT, location) == line


def test_a_location_is_written_with_dots_and_indices():
    assert dotted(("links", 0, "rate")) == "links[0].rate"


def test_the_nearest_choice_is_offered_only_when_it_is_near():
    assert nearest("max_tokenz", ["max_tokens", "devices"]) == "max_tokens"
    assert nearest("zzz", ["max_tokens", "devices"]) is None


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(SpecError, match="no file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="is a folder"):
        read_toml(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("a = 1\nb = \n")
    with pytest.raises(SpecError, match=r"broken\.toml:2: Invalid value"):
        read_toml(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_toml(broken)
