"""`rmux completion`: what a shell reads to complete rmux commands."""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import Annotated

import typer

from rmux.cli.options import session

app = typer.Typer(help="Print the completion script of a shell.")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion")
def completion(
    ctx: typer.Context, shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]
) -> None:
    """Print the completion script of a shell: eval "$(rmux completion bash)"."""
    module = importlib.import_module("typer.completion")
    module.completion_init()
    script = module.get_completion_script(
        prog_name="rmux", complete_var="_RMUX_COMPLETE", shell=shell.value
    )
    session(ctx).out.print(str(script))
