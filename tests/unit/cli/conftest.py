"""A noun `try` whose verb `it` does what the test says."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest
import typer

from rmux.cli import mounts
from rmux.cli.main import main


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in [*os.environ]:
        if name.startswith(("RMUX_", "XDG_")) or name in ("NO_COLOR", "CLICOLOR_FORCE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mount(monkeypatch):
    """Mount an app, or the verb `it` that runs a function of the context, under a name."""

    def make(body, name="try", cls=None):
        app = body
        if not isinstance(body, typer.Typer):
            app = typer.Typer(cls=cls) if cls else typer.Typer()
            app.command("it")(_taking_context(body))
            app.command("other", hidden=True)(lambda: None)
        module = ModuleType(f"rmux.cli.for_test_{name}")
        module.app = app
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(mounts.MOUNTS, name, mounts.Mount("For a test.", (f"for_test_{name}",)))

    return make


@pytest.fixture
def run(capsys):
    """Exit code, stdout and stderr of one command line."""

    def call(*argv):
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def spawn(tmp_path):
    """Run `python -m rmux …` in a process of its own."""

    def call(*argv, env=None, **kwargs):
        own = {**os.environ, "HOME": str(tmp_path), "PYTHONWARNINGS": "error", **(env or {})}
        return subprocess.run(
            [sys.executable, "-m", "rmux", *argv],
            capture_output=True,
            text=True,
            env=own,
            timeout=60,
            check=False,
            **kwargs,
        )

    return call


def _taking_context(body):
    def verb(ctx: typer.Context):
        """Do what the test says."""
        return body(ctx)

    return verb
