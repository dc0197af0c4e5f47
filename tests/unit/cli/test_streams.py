"""What really goes through file descriptors: each test starts `rmux` as a user would."""

import json
import os
import subprocess
import sys
import textwrap

import pexpect
import pytest

LIGHT = [["--help"], ["config", "show"], ["schema", "--help"], ["doctor", "--help"]]
HEAVY = ("torch", "ray", "vllm", "deepspeed", "sqlalchemy", "alembic", "redis", "numpy", "click")


def noisy(tmp_path, body):
    """A program that mounts a command, runs it and exits like the console script."""
    path = tmp_path / "noisy.py"
    path.write_text(
        textwrap.dedent(
            """\
            import ctypes, os, subprocess, sys
            from types import ModuleType
            import typer
            from rmux.cli import mounts
            from rmux.cli.main import main
            from rmux.cli.documents import ErrorDocument
            from rmux.cli.options import session

            app = typer.Typer()

            @app.command("it")
            def it(ctx: typer.Context):
            {body}

            @app.command("other")
            def other():
                pass

            module = ModuleType("rmux.cli.noisy")
            module.app = app
            sys.modules[module.__name__] = module
            mounts.MOUNTS["noisy"] = mounts.Mount("Noise.", ("noisy",))
            sys.exit(main(["noisy", "it", *sys.argv[1:]]))
            """
        ).format(body=textwrap.indent(textwrap.dedent(body), "    "))
    )
    return [sys.executable, str(path)]


NOISE = """
out = session(ctx).out
print("from print")
ctypes.CDLL(None).puts(b"from puts")
ctypes.CDLL(None).fflush(None)
subprocess.run(["echo", "from a child"])
os.write(1, b"from write\\n")
out.line(ErrorDocument(code="x", exit_code=0, message="the answer"), text="the answer")
print("from print, late")
"""


def test_stdout_carries_the_answer_and_stderr_all_other_noise(tmp_path):
    command = noisy(tmp_path, NOISE)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["message"] == "the answer"
    for words in ("from print", "from puts", "from a child", "from write", "from print, late"):
        assert words in done.stderr


@pytest.mark.parametrize("unbuffered", ["0", "1"])
def test_a_reader_that_closes_the_pipe_early_is_no_failure(tmp_path, unbuffered):
    command = noisy(tmp_path, 'for n in range(200_000): session(ctx).out.print(f"line {n}")')
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1', "-", *command],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line 0\n", "")


def test_a_socket_that_its_peer_closed_is_not_taken_for_the_reader(tmp_path):
    done = subprocess.run(
        noisy(tmp_path, "raise BrokenPipeError(32, 'peer')"), capture_output=True, check=False
    )
    assert done.returncode == 11


@pytest.mark.parametrize("argv", LIGHT[:2], ids=" ".join)
@pytest.mark.parametrize(
    "env",
    [
        {"GITHUB_ACTIONS": "true"},
        {"FORCE_COLOR": "1", "PY_COLORS": "1"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
    ],
    ids=str,
)
def test_no_escape_byte_gets_into_a_pipe(spawn, argv, env):
    done = spawn(*argv, env=env)
    assert done.returncode == 0
    assert done.stdout != ""
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("argv", LIGHT, ids=" ".join)
def test_light_commands_load_nothing_heavy(argv, tmp_path):
    program = (
        "import sys\nfrom rmux.cli.main import main\n"
        f"assert main({argv!r}) == 0\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_help_of_every_noun_loads_nothing_heavy(tmp_path):
    program = (
        "import sys\nfrom rmux.cli.main import main\nfrom rmux.cli.mounts import MOUNTS\n"
        "assert [main([noun, '--help']) for noun in MOUNTS] == [0] * len(MOUNTS)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 2), ("", 2)])
def test_on_a_terminal_a_destructive_verb_asks(tmp_path, answer, status):
    command = noisy(tmp_path, 'session(ctx).confirm("would stop 3 jobs")')
    env = {**os.environ, "HOME": str(tmp_path)}
    child = pexpect.spawn(command[0], command[1:], env=env, encoding="utf-8", timeout=30)
    child.expect_exact("rmux: would stop 3 jobs. Go on? [y/N] ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == status


def test_no_input_never_asks_even_on_a_terminal(tmp_path):
    command = noisy(tmp_path, 'session(ctx).confirm("would stop 3 jobs")')
    env = {**os.environ, "HOME": str(tmp_path), "RMUX_NO_INPUT": "1"}
    child = pexpect.spawn(command[0], command[1:], env=env, encoding="utf-8", timeout=30)
    child.expect_exact("--no-input, so nothing was asked")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2


def test_importing_rmux_loads_no_face_and_no_engine():
    program = (
        "import sys, rmux\n"
        f"print([m for m in {(*HEAVY, 'typer', 'rich', 'pydantic')!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_times_in_json_do_not_depend_on_the_time_zone(spawn):
    for zone in ("UTC", "Asia/Shanghai"):
        document = json.loads(spawn("config", "show", "--json", env={"TZ": zone}).stdout)
        assert document["generated_at"].endswith("Z")
