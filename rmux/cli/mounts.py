"""Which module serves which noun. A module is loaded when its noun is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from rmux.cli.options import attach
from rmux.errors import UnreachableError


@dataclass(frozen=True, slots=True)
class Mount:
    """`modules` each have an `app`; their commands are put together under one noun."""

    help: str
    modules: tuple[str, ...]


MOUNTS: dict[str, Mount] = {
    "profile": Mount("Estimate or measure a job's phase times and memory.", ("profile",)),
    "place": Mount(
        "Show where a job would go, what it costs and who gets slower.",
        ("place", "place_period", "place_rebalance"),
    ),
    "job": Mount("Submit, follow and cancel jobs.", ("job", "submit")),
    "group": Mount("Run and watch the groups of jobs that share nodes.", ("group",)),
    "pool": Mount("Tell the store about pools, nodes and links.", ("pool",)),
    "sim": Mount("Replay a trace of jobs; compare policies on it.", ("sim",)),
    "sync": Mount("Move weights from train nodes to rollout nodes; measure it.", ("sync",)),
    "trace": Mount("Export and check what happened, phase by phase.", ("trace",)),
    "store": Mount("Make, migrate, back up and inspect the store.", ("store",)),
    "config": Mount("Show the settings and where each comes from.", ("config",)),
    "doctor": Mount("Check this host: store, engines, memory, cores.", ("doctor",)),
    "completion": Mount("Print the completion script of a shell.", ("completion",)),
    "schema": Mount("List and print the schemas of JSON documents.", ("schema",)),
}


class LazyGroup(TyperGroup):
    """The top of the command tree; its branches are made on demand."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self._loaded: set[str] = set()
        for name, mount in MOUNTS.items():
            self.commands[name] = TyperCommand(name, help=mount.help)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command tree of a noun, with the global flags on every command."""
        if cmd_name in MOUNTS and cmd_name not in self._loaded:
            self.commands[cmd_name] = load(cmd_name)
            self._loaded.add(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The nouns with their one line each, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, mount.help) for name, mount in MOUNTS.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a connection that its peer closed is not the reader of our stdout."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise UnreachableError(
                "a connection was closed by its other end", code="connection.closed"
            ) from error


app = typer.Typer(
    name="rmux",
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def rmux() -> None:
    """Run several RL post-training jobs on one pair of GPU pools, phase by phase.

    Jobs take turns on the rollout and the train pool, so that one job's rollout fills the other
    job's wait, and no job gets slower than it agreed to.
    """


def command_tree() -> LazyGroup:
    """A fresh root command: `rmux`."""
    root = cast("LazyGroup", typer.main.get_command(app))
    attach(root, hidden=False)
    return root


def load(name: str) -> TyperCommand | TyperGroup:
    """Import the modules of a noun and put their commands together."""
    mount = MOUNTS[name]
    parts = [
        typer.main.get_command(importlib.import_module(f"rmux.cli.{module}").app)
        for module in mount.modules
    ]
    whole = cast("TyperCommand | TyperGroup", parts[0])
    for part in parts[1:]:
        group = cast("TyperGroup", whole)
        if isinstance(part, TyperGroup):
            group.commands.update(part.commands)
        else:
            group.commands[cast("str", cast("TyperCommand", part).name)] = cast(
                "TyperCommand", part
            )
    whole.name = name
    whole.help = whole.help or mount.help
    whole.short_help = mount.help
    attach(whole)
    return whole
