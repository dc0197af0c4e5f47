import io
import json
from datetime import UTC, datetime
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import Field, ValidationError

from rmux.cli.documents import Document, Instant, Record, named, record_classes, schema_name
from rmux.cli.output import Column, Format, Output, Table
from rmux.cli.schema import json_schema

SHANGHAI = datetime.fromisoformat("2026-11-29T23:41:07.120+08:00")


class Thing(Record):
    schema_: Literal["test.thing/v1"] = named("test.thing/v1")
    name: str
    took_s: float
    more: dict[str, Any] = Field(default_factory=dict)


class Things(Document):
    schema_: Literal["test.things/v1"] = named("test.things/v1")
    seen_at: Instant
    items: tuple[Thing, ...]


THINGS = Things(
    seen_at=SHANGHAI,
    items=(
        Thing(name="a", took_s=1.5),
        Thing(name="b", took_s=float("nan"), more={"x": float("inf")}),
    ),
)
TABLE = Table(
    ("NAME", Column("TOOK", right=True), Column("WIDE", wide=True)),
    [("a-very-long-name" * 20, "1", "w"), ("b", None, "")],
)


@pytest.fixture
def out():
    return Output(io.StringIO(), io.StringIO())


def printed(out):
    return out.stdout.getvalue()


def emitted(out, form):
    out.format = Format(form)
    out.emit(THINGS, table=TABLE, names=["a", "b"])
    return printed(out)


def test_json_is_one_document_with_its_schema_first(out):
    document = json.loads(emitted(out, "json"))
    assert list(document)[:2] == ["schema", "generated_at"]
    assert document["schema"] == "test.things/v1"
    assert document["items"][0] == {
        "schema": "test.thing/v1",
        "name": "a",
        "took_s": 1.5,
        "more": {},
    }


def test_a_number_that_is_not_finite_is_null_everywhere(out):
    text = emitted(out, "json")
    item = json.loads(text, parse_constant=pytest.fail)["items"][1]
    assert (item["took_s"], item["more"]) == (None, {"x": None})


def test_instants_are_utc_with_milliseconds(out):
    document = json.loads(emitted(out, "json"))
    assert document["seen_at"] == "2026-11-29T15:41:07.120Z"
    made = datetime.fromisoformat(document["generated_at"])
    assert abs((datetime.now(UTC) - made).total_seconds()) < 60


def test_jsonl_has_one_compact_object_per_item(out):
    lines = emitted(out, "jsonl").splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a", "b"]
    assert all('"schema":"test.thing/v1"' in line for line in lines)


def test_name_prints_ids_only(out):
    assert emitted(out, "name") == "a\nb\n"


def test_a_table_off_a_terminal_is_plain_and_whole(out):
    lines = emitted(out, "table").splitlines()
    assert lines[0].split() == ["NAME", "TOOK"]
    assert lines[1].startswith("a-very-long-name" * 20 + "  ")
    assert lines[2].split() == ["b", "-"]
    assert "\x1b" not in printed(out)
    assert all(line == line.rstrip() for line in lines)


def test_wide_shows_more_columns(out):
    assert emitted(out, "wide").splitlines()[0].split() == ["NAME", "TOOK", "WIDE"]


def test_columns_line_up_for_wide_characters(out):
    out.table(Table(("A", "B"), [("中文", "x"), ("abcd", "y")]))
    assert printed(out).splitlines() == ["A     B", "中文  x", "abcd  y"]


def test_an_empty_table_still_has_its_head(out):
    out.table(Table(("A", "B")))
    assert printed(out) == "A  B\n"


def test_colour_is_only_for_states_and_only_when_asked_for(out):
    out.color = "always"
    out.table(Table(("STATE",), [("running",), ("other",)]))
    assert printed(out).splitlines()[1:] == ["\x1b[32mrunning\x1b[0m", "other"]


@pytest.mark.parametrize(
    ("color", "variables", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"CLICOLOR_FORCE": "1"}, True),
        ("auto", {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        ("never", {"CLICOLOR_FORCE": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true", "PY_COLORS": "1"}, False),
    ],
)
def test_colour_follows_flag_then_variables_then_terminal(
    out, monkeypatch, color, variables, expected
):
    for name in ("NO_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out.color = color
    assert out.has_color is expected


def test_a_console_off_a_terminal_never_wraps_or_colours(out, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out.console().print("x" * 500, style="bold red")
    assert printed(out) == "x" * 500 + "\n"


def test_a_stream_prints_lines_for_people_or_programs(out):
    out.line(THINGS.items[0], text="a took 1.5 s")
    out.format = Format.JSONL
    out.line(THINGS.items[0], text="a took 1.5 s")
    first, second = printed(out).splitlines()
    assert first == "a took 1.5 s"
    assert json.loads(second)["name"] == "a"


def test_a_document_fits_its_own_schema(out):
    schema = json_schema(Things)
    jsonschema.validate(json.loads(emitted(out, "json").replace("null", "0")), schema)
    assert schema["properties"]["schema"]["const"] == "test.things/v1"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "test.other/v1"}, schema)


def test_a_document_refuses_keys_it_does_not_have():
    with pytest.raises(ValidationError):
        Thing(name="a", took_s=1, extra=2)


def test_only_named_records_of_rmux_are_listed():
    names = {schema_name(cls) for cls in record_classes()}
    assert "rmux.error/v1" in names
    assert "test.thing/v1" not in names
    assert schema_name(Record) is None
