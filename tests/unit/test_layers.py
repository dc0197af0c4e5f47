"""The house as import-linter sees it, and two traps of names."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rmux

ROOT = Path(rmux.__file__).resolve().parent


def lint(folder):
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_layering_holds():
    done = lint(ROOT.parent)
    assert done.returncode == 0, done.stdout


def test_a_core_module_that_reaches_up_breaks_the_build(tmp_path):
    config = (ROOT.parent / "pyproject.toml").read_text()
    config += (
        '\n[[tool.importlinter.contracts]]\nname = "for a test"\ntype = "forbidden"\n'
        'source_modules = ["rmux.cli"]\nforbidden_modules = ["rmux.units"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(config)
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "for a test BROKEN" in done.stdout


def test_no_public_name_of_rmux_is_also_a_module():
    modules = {module.name for module in pkgutil.iter_modules([str(ROOT)])}
    public = {name for name in getattr(rmux, "__all__", ()) if not name.startswith("__")}
    assert public.isdisjoint(modules)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_imports_click_or_starts_one_of_its_own_files_by_path(path):
    tree = ast.parse(path.read_text())
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert "click" not in imported
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "_click" not in attributes
