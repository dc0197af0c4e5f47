"""The walk-through of README.md, as it stands there, but with shorter phases."""

import os
import re
import subprocess
from pathlib import Path

import rmux

ROOT = Path(rmux.__file__).resolve().parent.parent


def walk_through():
    text = (ROOT / "README.md").read_text()
    part = text.split("## By hand\n")[1].split("Real engines on the CPU")[0]
    lines = [line[4:] for line in part.splitlines() if line.startswith("    ")]
    script = "\n".join(lines).replace('"1s"', '"100ms"')
    return re.sub(r"^(rmux group watch \w+)", r"\1 --once", script, flags=re.MULTILINE)


def test_every_command_of_the_walk_through_works(tmp_path):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RMUX_", "XDG_"))}
    script = walk_through().replace("$PWD/.venv/bin", str(ROOT / ".venv" / "bin"))
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**env, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    jobs = re.findall(r"^j-\w+ +(left|right) +(\w+) .* 5 ", done.stdout, re.MULTILINE)
    assert sorted(jobs) == [("left", "SUCCEEDED"), ("right", "SUCCEEDED")]
    assert len(script.splitlines()) > 20
