"""JSON documents: what `--json` prints, and what `rmux schema show` describes.

Every object carries its schema name first. Inside v1 keys are only added; a key that goes or
changes its type makes v2. Keys carry their units; instants are RFC 3339, UTC, milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema

from rmux.clock import to_rfc3339

Instant = Annotated[
    datetime,
    PlainSerializer(to_rfc3339, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
"""A timezone-aware datetime, printed as '2026-11-29T15:41:07.120Z'."""


class Part(BaseModel):
    """An object inside a document that has no name of its own."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        serialize_by_alias=True,
        ser_json_inf_nan="null",
    )


class Record(Part):
    """A named object, such as one item of a list.

    A subclass sets its name: `schema_: Literal["rmux.job/v1"] = named("rmux.job/v1")`.
    """

    schema_: str = Field(alias="schema")

    def to_json(self, *, indent: int | None = None) -> str:
        """RFC 8259 text; a number that is not finite is written as null."""
        return self.model_dump_json(indent=indent)


class Document(Record):
    """What a command prints under `-o json`: exactly one. A list has its records in `items`."""

    generated_at: Instant = Field(default_factory=lambda: datetime.now(UTC))

    def records(self) -> tuple[Record, ...]:
        """The lines of `-o jsonl`: the items of a list, or the document itself."""
        items = getattr(self, "items", None)
        return (self,) if items is None else tuple(items)


class ErrorDocument(Record):
    """The last line on stderr when a command fails under `-o json` or `-o jsonl`."""

    schema_: str = Field(default="rmux.error/v1", alias="schema")
    code: str
    exit_code: int
    message: str
    hint: str | None = None
    details: dict[str, Any] = Field(default_factory=dict)
    retryable: bool = False
    docs: str = "rmux-exit-codes(7)"


def named(name: str) -> Any:
    """The default of a record's `schema_` field."""
    return Field(default=name, alias="schema")


def schema_name(cls: type[Record]) -> str | None:
    """'rmux.job/v1', or None for a class that is only a base."""
    default = cls.model_fields["schema_"].default
    return default if isinstance(default, str) else None


def record_classes(root: type[Record] = Record) -> Iterator[type[Record]]:
    """Every named record of rmux that is loaded."""
    for cls in root.__subclasses__():
        if schema_name(cls) is not None and cls.__module__.startswith("rmux."):
            yield cls
        yield from record_classes(cls)
