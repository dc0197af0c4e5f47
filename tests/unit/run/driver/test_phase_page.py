"""The example in rmux-phase(7) is run as it stands there, without rmux and under it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rmux
from rmux import spec
from rmux.events import EventType
from rmux.job import Engine
from rmux.run.channel import MemoryChannel
from rmux.run.driver.loop import run_driver

PAGE = Path(__file__).parents[4] / "man" / "man7" / "rmux-phase.7"


@pytest.fixture
def examples(tmp_path):
    """The script and its spec, in a folder of their own."""
    text = PAGE.read_text().replace("\\-", "-")
    script, toml, _ = re.findall(r"^\.EX\n(.*?)^\.EE$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "climb.py").write_text(script)
    (tmp_path / "climb.toml").write_text(toml)
    return tmp_path


def test_the_example_runs_without_rmux(examples):
    argv = [sys.executable, "climb.py"]
    output = subprocess.run(argv, cwd=examples, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[0] == "iteration 0 reward 0.0"
    assert output.splitlines()[-1].startswith("iteration 4 reward 0.9")


def test_the_example_runs_under_rmux_and_goes_on_after_its_checkpoint(
    examples, make_config, hub, gate, monkeypatch, capsys
):
    for name in ("RMUX_START_ITERATION", "RMUX_ITERATIONS", "RMUX_RUN_DIR"):
        monkeypatch.setenv(name, "unset")
    monkeypatch.chdir(examples)
    monkeypatch.setattr("sys.argv", ["driver"])
    monkeypatch.setattr("sys.path", list(sys.path))
    loaded = spec.load_spec(examples / "climb.toml")
    assert loaded.script == str(examples / "climb.py")
    gate.serve()
    for attempt, iterations in ((1, 2), (2, 4)):
        gate.attempt = attempt
        config = make_config(
            attempt=attempt,
            recipe=None,
            script=loaded.script,
            engine=Engine.REAL,
            iterations=iterations,
        )
        config.run_dir.mkdir(exist_ok=True)
        assert run_driver(config, channel=MemoryChannel(hub)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    rewards = [float(line.split()[3]) for line in lines]
    assert rewards == pytest.approx([0, 0.5, 0.75, 0.875])
    gate.stop()
    gate.hear(timeout_s=0.0)
    assert [e.data["reward"] for e in gate.of_type(EventType.ITERATION_END)] == rewards


def test_the_page_names_everything_that_is_public():
    text = PAGE.read_text().replace("\\-", "-")
    assert [name for name in rmux.__all__ if name != "__version__" and name not in text] == []
