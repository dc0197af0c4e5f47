"""A noun that is also a verb: `rmux profile SPEC`."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer

from rmux.cli.options import FlatVerbGroup, session

app = typer.Typer(cls=FlatVerbGroup, help="A noun and a verb.")


@app.command("run")
def run_it(
    ctx: typer.Context,
    spec: Annotated[str, typer.Argument()],
    refresh: Annotated[bool, typer.Option("--refresh")] = False,
) -> None:
    """The flat verb."""
    session(ctx).out.print(f"run {spec} {refresh} {session(ctx).settings.host}")


@app.command("ls")
def ls(ctx: typer.Context) -> None:
    """A sub-command."""
    session(ctx).out.print("ls")


@pytest.fixture(autouse=True)
def mounted(mount):
    mount(app, name="flat")


@pytest.mark.parametrize(
    "argv",
    [
        ["flat", "a.toml"],
        ["flat", "run", "a.toml"],
        ["flat", "--host", "me", "a.toml"],
        ["flat", "--host=me", "a.toml"],
        ["--host", "me", "flat", "a.toml"],
    ],
)
def test_a_spec_in_place_of_a_verb_runs_the_flat_verb(run, argv):
    code, out, _ = run(*argv)
    assert code == 0
    assert out.startswith("run a.toml False ")


def test_options_of_the_flat_verb_may_come_first(run):
    assert run("flat", "--refresh", "a.toml")[1].startswith("run a.toml True")


def test_a_sub_command_wins_over_a_file_of_its_name(run, tmp_path):
    (tmp_path / "ls").write_text("")
    assert run("flat", "ls")[1] == "ls\n"
    assert run("flat", "./ls")[1].startswith("run ./ls")


def test_a_file_without_a_suffix_counts_when_it_is_there(run, tmp_path):
    (tmp_path / "spec").write_text("")
    assert run("flat", "spec")[1].startswith("run spec")


def test_a_mistyped_sub_command_is_not_taken_for_a_file(run):
    code, _, err = run("flat", "lss")
    assert code == 2
    assert "'lss' is neither a file nor a command (ls)" in err


def test_help_is_that_of_the_noun(run):
    code, out, _ = run("flat", "-h")
    assert code == 0
    assert "A noun and a verb." in out
