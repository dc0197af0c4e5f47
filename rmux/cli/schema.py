"""`rmux schema`: the JSON Schema of what `--json` prints, from the models that print it."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rmux.cli import documents
from rmux.cli.documents import Document, Record, named
from rmux.cli.options import session
from rmux.cli.output import Table
from rmux.errors import NotFoundError
from rmux.toml_lines import nearest

app = typer.Typer(help="List and print the schemas of JSON documents.")


class SchemaItem(Record):
    """One schema: its name and what it describes."""

    schema_: Literal["rmux.schema/v1"] = named("rmux.schema/v1")
    name: str
    title: str


class SchemaList(Document):
    """Every schema."""

    schema_: Literal["rmux.schema_list/v1"] = named("rmux.schema_list/v1")
    items: tuple[SchemaItem, ...]


@app.command("ls")
def ls(ctx: typer.Context) -> None:
    """List the schemas."""
    out = session(ctx).out
    items = tuple(
        SchemaItem(name=name, title=_title(cls)) for name, cls in sorted(loaded_classes().items())
    )
    out.emit(
        SchemaList(items=items),
        table=Table(("NAME", "WHAT"), [(item.name, item.title) for item in items]),
        names=[item.name for item in items],
    )


@app.command("show")
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as rmux.job/v1 or job.")],
) -> None:
    """Print one JSON Schema."""
    out = session(ctx).out
    classes = loaded_classes()
    full = name if "/" in name else f"rmux.{name}/v1"
    if full not in classes:
        meant = nearest(full, classes)
        raise NotFoundError(
            f"no schema {name!r}" + (f" (did you mean {meant}?)" if meant else ""),
            hint="rmux schema ls",
        )
    out.print(json.dumps(json_schema(classes[full]), indent=2))


def json_schema(cls: type[Record]) -> dict[str, Any]:
    """What the class prints, as JSON Schema 2020-12."""
    schema = cls.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def loaded_classes() -> dict[str, type[Record]]:
    """Every named document and item of every command, by schema name."""
    from rmux.cli.mounts import MOUNTS

    modules = {module for mount in MOUNTS.values() for module in mount.modules}
    modules |= {path.stem for path in Path(__file__).parent.glob("documents_*.py")}
    for module in modules:
        importlib.import_module(f"rmux.cli.{module}")
    return {str(documents.schema_name(cls)): cls for cls in documents.record_classes()}


def _title(cls: type[Record]) -> str:
    """The first line of the class's docstring, else its name in words."""
    own = (cls.__dict__.get("__doc__") or "").strip()
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).capitalize()
    return own.splitlines()[0] if own else f"{words}."
