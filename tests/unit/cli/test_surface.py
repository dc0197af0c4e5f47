"""The command surface, frozen: what scripts of users rely on changes only on purpose.

After a change on purpose: python tests/unit/cli/test_surface.py > tests/unit/cli/surface.txt
"""

import difflib
import sys
from pathlib import Path

import typer

from rmux.cli.exit_codes import ExitCode
from rmux.cli.mounts import MOUNTS, command_tree, load
from rmux.cli.schema import loaded_classes

FROZEN = Path(__file__).with_name("surface.txt")


def surface():
    root = command_tree()
    lines = sorted(f"global {words(param)}" for param in root.params)
    lines += commands(root, "rmux")
    lines += [f"exit {int(code)} {code.name}" for code in ExitCode]
    for name, cls in sorted(loaded_classes().items()):
        keys = " ".join(field.alias or key for key, field in cls.model_fields.items())
        lines.append(f"schema {name}: {keys}")
    return lines


def commands(command, path):
    context = typer.Context(command, info_name=path.split()[-1])
    if not hasattr(command, "commands"):
        visible = [param for param in command.params if not getattr(param, "hidden", False)]
        own = [words(param) for param in visible if param.name != "help"]
        return [" ".join([path, *own])]
    return [
        line
        for name in command.list_commands(context)
        for line in commands(command.get_command(context, name), f"{path} {name}")
    ]


def words(param):
    if param.param_type_name == "argument":
        return f"<{param.metavar or param.name}>"
    return "/".join([*param.opts, *param.secondary_opts])


def test_the_surface_is_the_frozen_one():
    frozen, now = FROZEN.read_text().splitlines(), surface()
    changes = list(difflib.unified_diff(frozen, now, "surface.txt", "now", lineterm="", n=0))
    assert changes == []


def test_each_noun_says_the_same_in_its_own_help_and_in_the_list():
    for name, mount in MOUNTS.items():
        assert load(name).get_short_help_str(200) == mount.help


def test_every_schema_is_versioned_and_listed_with_a_title(run):
    code, out, _ = run("schema", "ls")
    assert code == 0
    listed = dict(line.split(maxsplit=1) for line in out.splitlines()[1:])
    assert set(listed) == set(loaded_classes())
    for name, title in listed.items():
        assert name.startswith("rmux.")
        assert name.endswith("/v1")
        assert title


if __name__ == "__main__":
    sys.stdout.write("\n".join(surface()) + "\n")
