"""The man pages say what the commands do, and their examples work."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

import rmux
from rmux import spec
from rmux.cli.exit_codes import ExitCode
from rmux.cli.mounts import command_tree
from rmux.config import KEYS
from rmux.events import EventType
from rmux.spec_models import ClusterFile, LinkSection, NodeSection, PoolSection, SpecFile

ROOT = Path(rmux.__file__).resolve().parent.parent
MAN = ROOT / "man"


def plain(page):
    """The words of a page, without the escapes of roff."""
    return (MAN / page).read_text().replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def examples(page):
    return re.findall(r"^\.EX\n(.*?)^\.EE$", plain(page), re.MULTILINE | re.DOTALL)


def leaves(command, path):
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    context = typer.Context(command, info_name=path[-1])
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if not child.hidden:
            yield from leaves(child, (*path, name))


LEAVES = dict(leaves(command_tree(), ("rmux",)))


def test_the_pages_are_those_that_the_commands_make():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "man", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_type_of_event_stands_in_its_page():
    page = plain("man5/rmux-events.5")
    assert [kind for kind in EventType if f".B {kind}\n" not in page] == []


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_and_every_option_has_help_and_stands_in_a_page(path):
    command = LEAVES[path]
    page = plain(f"man1/rmux-{path[1]}.1")
    assert command.help
    assert " ".join(path) in page
    for param in command.params:
        if not getattr(param, "hidden", False) and param.name != "help":
            assert getattr(param, "help", None), f"{param.name} has no help"
            for opt in param.opts:
                if opt.startswith("-"):
                    assert opt in page


def test_every_variable_and_global_flag_stands_in_the_first_page():
    page = plain("man1/rmux.1")
    assert [key.env for key in KEYS if key.env not in page] == []
    for flag in ("--json", "--store", "--timeout", "--no-input", "--color"):
        assert flag in page


def test_every_exit_code_stands_in_its_page():
    page = plain("man7/rmux-exit-codes.7")
    assert re.findall(r'^\.B "?(\d+)"?$', page, re.MULTILINE) == [str(int(c)) for c in ExitCode]


def sections(model):
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation)


@pytest.mark.parametrize(
    ("page", "models"),
    [
        ("man5/rmux-spec.5", list(sections(SpecFile))),
        ("man5/rmux-cluster.5", [ClusterFile, PoolSection, NodeSection, LinkSection]),
    ],
)
def test_every_key_of_a_file_stands_in_its_page(page, models):
    text = plain(page)
    for model in models:
        for name, field in model.model_fields.items():
            key = field.alias or name
            assert re.search(rf"^\.B {key}$|^\.SS \[+{key}\b", text, re.MULTILINE), key


def test_the_example_specs_can_be_loaded(tmp_path):
    for text in examples("man5/rmux-spec.5"):
        path = tmp_path / "job.toml"
        path.write_text(text)
        assert spec.load_spec(path).slo == 1.5


def test_the_example_cluster_files_can_be_loaded(tmp_path):
    counts = []
    for text in examples("man5/rmux-cluster.5"):
        path = tmp_path / "pools.toml"
        path.write_text(text)
        cluster = spec.load_cluster(path, host="here")
        counts.append([len(pool.nodes) for pool in cluster.pools])
    assert counts == [[1, 1], [8, 4], [1, 1]]


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
@pytest.mark.parametrize("page", sorted(MAN.glob("man*/*")), ids=lambda page: page.name)
def test_a_page_is_clean_under_lint(page):
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
