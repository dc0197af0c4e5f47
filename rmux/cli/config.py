"""`rmux config`: the settings in force, and where each came from."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from rmux.cli.documents import Document, Record, named
from rmux.cli.options import session
from rmux.cli.output import Table
from rmux.config import KEYS, Settings, config_files, display_url

app = typer.Typer(help="Show the settings and where each comes from.")


class Setting(Record):
    """One setting: its value, where it came from, its variable."""

    schema_: Literal["rmux.setting/v1"] = named("rmux.setting/v1")
    key: str
    value: str | float | bool | None
    origin: str
    env: str
    help: str


class SettingList(Document):
    """Every setting in force."""

    schema_: Literal["rmux.setting_list/v1"] = named("rmux.setting_list/v1")
    items: tuple[Setting, ...]


class ConfigPaths(Document):
    """The config files that were read, nearest first."""

    schema_: Literal["rmux.config_paths/v1"] = named("rmux.config_paths/v1")
    paths: tuple[str, ...]


@app.command("show")
def show(
    ctx: typer.Context,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show where each value came from.")
    ] = False,
) -> None:
    """Show the settings in force."""
    found = session(ctx)
    items = tuple(_settings(found.settings))
    columns = ("KEY", "VALUE", "ORIGIN", "VARIABLE") if origin else ("KEY", "VALUE")
    rows = [(item.key, item.value, item.origin, item.env)[: len(columns)] for item in items]
    found.out.emit(
        SettingList(items=items),
        table=Table(columns, rows),
        names=[item.key for item in items],
    )


@app.command("path")
def path(ctx: typer.Context) -> None:
    """Print the config files that are read, nearest first."""
    found = session(ctx)
    paths = tuple(str(item) for item in config_files(found.flags.get("config"), env=os.environ))
    found.out.emit(ConfigPaths(paths=paths), text="\n".join(paths) or "none", names=paths)


def _settings(settings: Settings) -> list[Setting]:
    items = []
    for key in KEYS:
        value = getattr(settings, key.field)
        if key.field in ("store_url", "redis_url"):
            value = None if value is None else display_url(value)
        items.append(
            Setting(
                key=key.name,
                value=value if isinstance(value, (bool, float)) or value is None else str(value),
                origin=settings.origins[key.name],
                env=key.env,
                help=key.help,
            )
        )
    return items
