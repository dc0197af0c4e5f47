"""The `rmux` command: streams, signals and exit codes around the command tree."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from rmux.cli import failures
from rmux.cli.exit_codes import ExitCode
from rmux.cli.mounts import command_tree
from rmux.cli.options import Session, deadline_alarm, silence_alarm
from rmux.cli.output import Output, PipeClosed, claimed_stdout
from rmux.errors import DeadlineError, InternalError, RmuxError


class Terminated(BaseException):
    """SIGTERM: unwinds like Ctrl-C, so that whatever is held is given back."""


def entry() -> NoReturn:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line; returns its exit code, whatever happens. Also for tests."""
    args = list(argv)
    if "_RMUX_COMPLETE" in os.environ:
        return _complete(args)
    with claimed_stdout() as stdout, _sigterm_unwinds(), deadline_alarm():
        out = Output(stdout, sys.stderr)
        session = Session(out)
        try:
            code = _run(args, session)
            out.flush()
        except PipeClosed:
            code = ExitCode.DONE
            _discard(out)
        finally:
            session.close()
        return int(code)


def _run(args: list[str], session: Session) -> int:
    out = session.out
    try:
        result = command_tree().main(
            args=args, prog_name="rmux", standalone_mode=False, obj=session
        )
        if result == ExitCode.INTERRUPTED:  # Typer makes Ctrl-C a result
            out.say("rmux: interrupted")
        return result if isinstance(result, int) else ExitCode.DONE
    except typer.TyperException as error:
        if failures.is_help(error):
            out.say(error.format_message())
            return ExitCode.USAGE
        return _failed(failures.usage_error(error), args, session)
    except RmuxError as error:
        if isinstance(error, InternalError):
            return _crashed(error, args, session)
        return _failed(error, args, session)
    except TimeoutError as error:
        return _failed(DeadlineError(str(error) or "timed out"), args, session)
    except (KeyboardInterrupt, typer.Abort):
        out.say("rmux: interrupted")
        return ExitCode.INTERRUPTED
    except Terminated:
        out.say("rmux: terminated")
        return ExitCode.TERMINATED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else ExitCode.INTERNAL
    except Exception as error:  # noqa: BLE001 - the last stop: a bug becomes a crash file
        return _crashed(error, args, session)


def _failed(error: RmuxError, args: list[str], session: Session) -> ExitCode:
    silence_alarm()
    if session.debug:
        traceback.print_exc(file=session.out.stderr)
    as_json = session.out.is_json or failures.wants_json(args)
    return failures.report(session.out, error, as_json=as_json)


def _crashed(error: Exception, args: list[str], session: Session) -> ExitCode:
    path = failures.crash_file(args)
    bug = InternalError(
        f"{type(error).__name__}: {error}",
        hint="this is a bug in rmux" + (f"; what is known is in {path}" if path else ""),
        details={"crash_file": str(path) if path else None},
    )
    return _failed(bug, args, session)


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _discard(out: Output) -> None:
    """Lead a stdout that nobody reads to nowhere, so that closing it is no second failure."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stdout that is an object has no descriptor
        pass


def _complete(args: list[str]) -> int:
    """A shell asks for completions: Typer answers on stdout and exits."""
    completion = importlib.import_module("typer.completion")
    completion.completion_init()
    session = Session(Output(sys.stdout, sys.stderr))
    try:
        command_tree().main(args=args, prog_name="rmux", standalone_mode=False, obj=session)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else ExitCode.INTERNAL
    return ExitCode.DONE
