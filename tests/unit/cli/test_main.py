import json
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from rmux import errors
from rmux.cli.exit_codes import MEANINGS, ExitCode, code_of
from rmux.cli.options import session


def failing(error):
    def body(_ctx):
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("a bug"), 1),
        (errors.InternalError("a bug"), 1),
        (errors.SpecError("bad"), 2),
        (errors.ConfirmationError("ask"), 2),
        (errors.QuantityError("bad"), 2),
        (errors.InfeasibleError("never fits"), 3),
        (errors.NotFoundError("no job"), 4),
        (errors.ConflictError("raced"), 5),
        (errors.EndedError("failed"), 6),
        (errors.WorkerError("died"), 6),
        (errors.StaleWeightsError("old"), 6),
        (errors.CheckError("mismatch"), 7),
        (errors.UnavailableError("busy"), 8),
        (errors.BackendError("no ray"), 9),
        (errors.StoreMissingError("none"), 10),
        (errors.UnreachableError("locked"), 11),
        (errors.StoreVersionError("newer"), 12),
        (errors.DeadlineError("late"), 124),
        (TimeoutError("late"), 124),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(mount, run, error, code):
    mount(failing(error))
    got, out, err = run("try", "it")
    assert got == code
    assert out == ""
    assert err.startswith("rmux: ")


def test_every_error_class_has_a_code_and_every_code_a_meaning():
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    codes = {code_of(cls("x")) for cls in classes if issubclass(cls, errors.RmuxError)}
    signals = {ExitCode.DONE, ExitCode.INTERRUPTED, ExitCode.KILLED, ExitCode.TERMINATED}
    assert codes | signals == set(ExitCode) == set(MEANINGS)


def test_sigterm_unwinds_the_command_and_exits_143(mount, run):
    cleaned = []

    def body(_ctx):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            cleaned.append(True)

    before = signal.getsignal(signal.SIGTERM)
    mount(body)
    code, _, err = run("try", "it")
    assert (code, cleaned) == (143, [True])
    assert "terminated" in err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_deadline_that_a_finaliser_swallows_rings_again(mount, run):
    class Swallowing:
        def __del__(self):
            try:
                time.sleep(0.3)
            except errors.DeadlineError:
                swallowed.append(True)

    def body(ctx):
        session(ctx)
        Swallowing()
        time.sleep(5)

    swallowed = []
    mount(body)
    started = time.monotonic()
    assert run("try", "it", "--timeout", "20ms")[0] == 124
    assert swallowed == [True]
    assert time.monotonic() - started < 2


def test_a_deadline_does_not_ring_into_what_is_cleaned_up_because_of_it(mount, run):
    def body(ctx):
        session(ctx)
        try:
            time.sleep(5)
        finally:
            time.sleep(0.5)
            cleaned.append(True)

    cleaned = []
    mount(body)
    assert run("try", "it", "--timeout", "20ms")[0] == 124
    assert cleaned == [True]


def test_a_deadline_ends_the_command_with_124(mount, run):
    def body(ctx):
        session(ctx)
        time.sleep(5)

    mount(body)
    started = time.monotonic()
    code, _, err = run("try", "it", "--timeout", "20ms")
    assert code == 124
    assert "--timeout" in err
    assert time.monotonic() - started < 2


def test_an_error_is_told_in_three_lines(mount, run):
    mount(
        failing(
            errors.UnavailableError(
                "core 0 is taken",
                code="core.held",
                hint="rmux group ls",
                details={"why": "pid 7 runs there"},
            )
        )
    )
    code, out, err = run("try", "it")
    assert (code, out) == (8, "")
    assert err.splitlines() == [
        "rmux: error [core.held]: core 0 is taken",
        "  why   pid 7 runs there",
        "  next  rmux group ls",
    ]


@pytest.mark.parametrize("flags", [["--json"], ["-o", "json"], ["--output=jsonl"]])
def test_under_json_the_last_line_on_stderr_is_the_error_object(mount, run, flags):
    mount(failing(errors.UnreachableError("locked", hint="again", details={"pid": 7})))
    code, out, err = run("try", "it", *flags)
    document = json.loads(err.splitlines()[-1])
    assert (code, out) == (11, "")
    assert document["schema"] == "rmux.error/v1"
    assert (document["exit_code"], document["retryable"]) == (11, True)
    assert (document["message"], document["hint"]) == ("locked", "again")
    assert document["details"] == {"pid": 7}


def test_a_command_line_that_cannot_be_read_is_an_error_object_too(run):
    code, out, err = run("config", "show", "--nope", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err.splitlines()[-1])["code"] == "usage"


@pytest.mark.parametrize(
    ("argv", "said", "following"),
    [
        (["confg"], "did you mean 'config'", "rmux --help"),
        (["config", "shw"], "did you mean 'show'", "rmux config --help"),
        (["config", "show", "--nope"], "no such option: --nope", "rmux config show --help"),
        (["schema", "show"], "missing argument 'name'", "rmux schema show --help"),
        (["config", "show", "-o", "xml"], "xml", "rmux config show --help"),
        (["config", "show", "--color", "blue"], "auto, always, never", "rmux config show --help"),
        (["config", "show", "--timeout", "5"], "'5' is not a duration", "rmux config show --help"),
    ],
)
def test_a_mistyped_command_line_exits_2_and_names_the_help(run, argv, said, following):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert said in err.lower()
    assert err.splitlines()[-1] == f"  next  {following}"


def test_a_bug_leaves_a_crash_file_that_has_the_traceback(mount, run, tmp_path):
    mount(failing(RuntimeError("a bug")))
    code, _, err = run("try", "it", "--json")
    path = Path(json.loads(err.splitlines()[-1])["details"]["crash_file"])
    assert code == 1
    assert path.is_relative_to(tmp_path)
    assert "RuntimeError: a bug" in path.read_text()
    assert "Traceback" not in err


def test_debug_shows_the_traceback_at_once(mount, run):
    mount(failing(errors.NotFoundError("no job")))
    code, _, err = run("try", "it", "--debug")
    assert code == 4
    assert "Traceback" in err


def test_the_value_a_command_returns_is_its_exit_code(mount, run):
    mount(lambda _ctx: ExitCode.CHECK)
    assert run("try", "it")[0] == 7


def test_global_flags_count_before_and_after_the_verb(mount, run):
    mount(lambda ctx: session(ctx).out.print(session(ctx).settings.store_url))
    for argv in (
        ["--store", "sqlite:///x", "try", "it"],
        ["try", "--store", "sqlite:///x", "it"],
        ["try", "it", "--store", "sqlite:///x"],
        ["--store", "other", "try", "it", "--store=sqlite:///x"],
    ):
        assert run(*argv) == (0, "sqlite:///x\n", "")


def test_no_arguments_print_the_help_on_stderr_and_exit_2(run):
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: rmux ")


def test_help_and_version_are_answers(run):
    for argv in (["--help"], ["-h"], ["config", "-h"], ["config", "show", "--help"]):
        code, out, err = run(*argv)
        assert (code, err) == (0, "")
        assert out.startswith("Usage: rmux ")
    code, out, err = run("--version")
    assert (code, out.split()[0], err) == (0, "rmux", "")


def test_a_destructive_verb_off_a_terminal_needs_yes(mount, run):
    mount(lambda ctx: session(ctx).confirm("would stop 3 running jobs"))
    code, out, err = run("try", "it")
    assert (code, out) == (2, "")
    assert "would stop 3 running jobs; not a terminal" in err
    assert "next  add --yes" in err
    assert run("try", "it", "--yes")[0] == 0
    assert run("try", "it", "-y")[0] == 0


def test_yes_may_come_from_the_environment(mount, run, monkeypatch):
    mount(lambda ctx: session(ctx).confirm("would stop 3 running jobs"))
    monkeypatch.setenv("RMUX_YES", "1")
    assert run("try", "it")[0] == 0


def test_a_setting_that_cannot_be_used_exits_2_with_its_name(mount, run, monkeypatch):
    mount(session)
    monkeypatch.setenv("RMUX_TIMEOUT", "soon")
    code, _, err = run("try", "it")
    assert code == 2
    assert "RMUX_TIMEOUT" in err


def test_quiet_silences_notes_but_not_errors(mount, run):
    def body(ctx):
        found = session(ctx)
        found.out.note("a note")
        found.out.warn("a warning")
        raise errors.NotFoundError("no job")

    mount(body)
    assert "a note\nrmux: warning: a warning\n" in run("try", "it")[2]
    assert run("try", "it", "-q")[2] == "rmux: error [not-found]: no job\n"


def test_settings_are_shown_with_their_origin(run, monkeypatch):
    monkeypatch.setenv("RMUX_STORE", "postgresql+psycopg://me:secret@db/rmux")
    code, out, _ = run("config", "show", "--origin")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("store.url"))
    assert line.split() == ["store.url", "postgresql+psycopg://me:***@db/rmux", *["RMUX_STORE"] * 2]
    assert "secret" not in run("config", "show", "--json")[1]


def test_doctor_reports_and_changes_nothing(run, tmp_path):
    code, out, _ = run("doctor", "--json")
    document = json.loads(out)
    found = {item["name"]: item for item in document["items"]}
    assert code in (0, 7)
    assert found["store"]["status"] == "warn"
    assert found["store"]["fix"] == "rmux store init"
    assert {"shm", "cores", "ports", "channel", "engine.vllm"} <= set(found)
    assert {"memory", "oom", "isolation", "device-memory"} <= set(found)
    assert (
        "jobs of one user run under one uid and can read each other's"
        in (found["isolation"]["message"])
    )
    assert run("doctor", "--strict")[0] == 7
    assert list(tmp_path.iterdir()) == []


def test_completions_are_answered(spawn):
    done = spawn(
        env={"_RMUX_COMPLETE": "complete_bash", "COMP_WORDS": "rmux conf", "COMP_CWORD": "1"}
    )
    assert (done.returncode, done.stdout.strip()) == (0, "config")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(run, shell):
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert "_RMUX_COMPLETE" in out
    assert f"complete_{shell}" in out


def test_logs_go_to_stderr_as_loud_as_asked(mount, run):
    def body(ctx):
        session(ctx)
        for level in ("debug", "info", "warning"):
            getattr(logging.getLogger("rmux.test"), level)("said at %s", level)

    mount(body)
    handlers = list(logging.getLogger().handlers)
    assert run("try", "it")[2] == "WARNING rmux.test: said at warning\n"
    assert run("try", "it", "-v")[2].count("said at") == 2
    assert run("try", "it", "-vv")[2].count("said at") == 3
    assert logging.getLogger().handlers == handlers
