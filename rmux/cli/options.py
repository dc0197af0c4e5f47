"""Global flags, accepted before and after the verb, and the session that they make."""

from __future__ import annotations

import copy
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from rmux import __version__, units
from rmux.cli.output import Format, Output
from rmux.config import Settings, load_settings
from rmux.errors import ConfirmationError, DeadlineError, QuantityError

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="At most this many rows; 0 for all.")]
SpecPath = Annotated[str, typer.Argument(metavar="SPEC", help="A job spec (TOML).")]

_RING_AGAIN_S = 0.1

_LEVELS = ("warning", "info", "debug")


class Session:
    """One run of the command line: its output, its flags, and the settings they lead to."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.flags: dict[str, Any] = {}
        self.debug = False
        self._settings: Settings | None = None
        self._log: logging.Handler | None = None

    @property
    def settings(self) -> Settings:
        """UserError when a file, an RMUX_* variable or a flag cannot be used."""
        if self._settings is None:
            self._settings = load_settings(self.flags)
        return self._settings

    def start(self) -> None:
        """Read the settings; set up colour, logging and the deadline of the command."""
        if self._settings is not None:
            return
        settings = self.settings
        self.out.color = settings.color
        self._log = logging.StreamHandler(self.out.stderr)
        self._log.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self._log.setLevel(settings.log_level.upper())
        logging.getLogger().addHandler(self._log)
        if settings.log_level in ("info", "debug"):
            logging.getLogger("rmux").setLevel(settings.log_level.upper())
        if settings.timeout_s is not None and threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, settings.timeout_s, _RING_AGAIN_S)

    def close(self) -> None:
        """Take the logging down again: one process may run many command lines."""
        if self._log is not None:
            logging.getLogger().removeHandler(self._log)

    def confirm(self, consequence: str) -> None:
        """Go on only if the user agrees to 'would stop 3 running jobs'.

        ConfirmationError when they do not, and off a terminal without --yes.
        """
        if self.settings.assume_yes:
            return
        asks = sys.stdin is not None and sys.stdin.isatty() and self.out.stderr.isatty()
        if self.settings.no_input or not asks:
            raise ConfirmationError(
                f"{consequence}; not a terminal, so nothing was asked"
                if not asks
                else f"{consequence}; --no-input, so nothing was asked",
                hint="add --yes",
            )
        self.out.stderr.write(f"rmux: {consequence}. Go on? [y/N] ")
        self.out.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfirmationError(f"{consequence}; not confirmed, so nothing was done")


def session(ctx: typer.Context) -> Session:
    """The session of a command, started. The first line of every command body."""
    found = cast("Session", ctx.obj)
    found.start()
    return found


@contextmanager
def deadline_alarm() -> Iterator[None]:
    """While it lasts, a passed --timeout raises DeadlineError in the main thread.

    What is raised inside a finaliser or a garbage collector's callback is lost, so it rings again
    until it is heard; not while the error is on its way out.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        heard = sys.exc_info()[1]
        while heard is not None:
            if isinstance(heard, DeadlineError):
                return
            heard = heard.__context__
        raise DeadlineError("the deadline given with --timeout passed")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        silence_alarm()
        signal.signal(signal.SIGALRM, before)


def silence_alarm() -> None:
    """The deadline has been heard, or does not matter any more."""
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)


def attach(command: Any, *, hidden: bool = True) -> None:
    """Give a command, and all below it, the global flags, -h, and plain help without colour."""
    command.params = [
        param
        for param in command.params
        if param.name not in ("install_completion", "show_completion")
    ]
    taken = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
    for param in _global_params():
        if taken.isdisjoint((*param.opts, *param.secondary_opts)):
            own = copy.copy(param)
            own.expose_value = False
            own.hidden = hidden and param.name != "help"
            command.params.append(own)
    command.rich_markup_mode = None
    if isinstance(command, TyperGroup):
        command.no_args_is_help = not command.invoke_without_command
        for below in command.commands.values():
            attach(below)


class FlatVerbGroup(TyperGroup):
    """A noun that is also a verb: `rmux profile SPEC` means `rmux profile run SPEC`.

    A sub-command's name wins; a file of that name is written './name'.
    """

    flat_verb = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        index = self._first_own(args)
        if index is not None and args[index] not in self.commands:
            self._check_path(ctx, args[index])
            args = [*args[:index], self.flat_verb, *args[index:]]
        return super().parse_args(ctx, args)

    def _first_own(self, args: list[str]) -> int | None:
        """Index of the first argument that is not one of the group's own flags."""
        takes_value = {
            opt: not (getattr(param, "is_flag", False) or getattr(param, "count", False))
            for param in self.params
            for opt in (*param.opts, *param.secondary_opts)
        }
        if any(arg in ("-h", "--help") for arg in args[:1]):
            return None
        index = 0
        while index < len(args):
            opt, equals, _ = args[index].partition("=")
            if opt not in takes_value:
                return index
            index += 2 if takes_value[opt] and not equals else 1
        return None

    def _check_path(self, ctx: Any, token: str) -> None:
        """A mistyped sub-command is better called that than a file that is not there."""
        looks_like_path = token.startswith("-") or "/" in token or "." in token
        if not looks_like_path and not Path(token).exists():
            ctx.fail(
                f"{token!r} is neither a file nor a command "
                f"({', '.join(name for name in self.commands if name != self.flat_verb)})"
            )


@cache
def _global_params() -> list[Any]:
    # Once per process: making them reads the annotations of every flag.
    return cast("list[Any]", typer.main.get_command(_globals).params)


def _set(field: str) -> Any:
    def store(ctx: typer.Context, value: Any) -> Any:
        if value is not None and value is not False:
            cast("Session", ctx.obj).flags[field] = value
        return value

    return store


def _set_duration(field: str) -> Any:
    def store(ctx: typer.Context, value: str | None) -> str | None:
        if value is not None:
            try:
                cast("Session", ctx.obj).flags[field] = units.parse_duration_s(value)
            except QuantityError as error:
                raise typer.BadParameter(f"{error.message}; {error.hint}") from error
        return value

    return store


def _set_format(ctx: typer.Context, value: Format | None) -> Format | None:
    if value is not None:
        cast("Session", ctx.obj).out.format = Format(value)
    return value


def _set_json(ctx: typer.Context, value: bool) -> bool:
    if value:
        cast("Session", ctx.obj).out.format = Format.JSON
    return value


def _set_color(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        if value not in ("auto", "always", "never"):
            raise typer.BadParameter(f"{value!r} is not one of auto, always, never")
        found = cast("Session", ctx.obj)
        found.flags["color"] = found.out.color = value
    return value


def _set_quiet(ctx: typer.Context, value: bool) -> bool:
    if value:
        cast("Session", ctx.obj).out.quiet = True
    return value


def _set_verbose(ctx: typer.Context, value: int) -> int:
    if value:
        cast("Session", ctx.obj).flags["log_level"] = _LEVELS[min(value, 2)]
    return value


def _set_debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        found = cast("Session", ctx.obj)
        found.debug = True
        found.flags["log_level"] = "debug"
    return value


def _show_help(ctx: typer.Context, value: bool) -> bool:
    if value and not ctx.resilient_parsing:
        _say(ctx, ctx.get_help())
    return value


def _show_version(ctx: typer.Context, value: bool) -> bool:
    if value and not ctx.resilient_parsing:
        _say(ctx, f"rmux {__version__}")
    return value


def _say(ctx: typer.Context, text: str) -> None:
    out = cast("Session", ctx.obj).out
    out.print(text)
    out.flush()
    raise typer.Exit


_globals = typer.Typer(add_completion=False)


@_globals.command()
def _flags(
    _output: Annotated[
        Format | None,
        typer.Option("--output", "-o", callback=_set_format, help="How to print the answer."),
    ] = None,
    _json: Annotated[
        bool, typer.Option("--json", callback=_set_json, help="The same as --output json.")
    ] = False,
    _store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", callback=_set("store_url"), help="The store."),
    ] = None,
    _redis: Annotated[
        str | None,
        typer.Option("--redis", metavar="URL", callback=_set("redis_url"), help="The channel."),
    ] = None,
    _config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            callback=_set("config"),
            help="Read this file instead of rmux.toml and the user's.",
        ),
    ] = None,
    _host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="NAME", callback=_set("host"), help="Name of this host in pools."
        ),
    ] = None,
    _timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            callback=_set_duration("timeout_s"),
            help="Give the whole command up after this (exit 124).",
        ),
    ] = None,
    _lock_timeout: Annotated[
        str | None,
        typer.Option(
            "--lock-timeout",
            metavar="DURATION",
            callback=_set_duration("lock_timeout_s"),
            help="Wait this long for a locked store.",
        ),
    ] = None,
    _quiet: Annotated[
        bool, typer.Option("--quiet", "-q", callback=_set_quiet, help="Say errors only.")
    ] = False,
    _verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, callback=_set_verbose, help="Say more.")
    ] = 0,
    _debug: Annotated[
        bool,
        typer.Option("--debug", callback=_set_debug, help="Log everything; show tracebacks."),
    ] = False,
    _color: Annotated[
        str | None,
        typer.Option(
            "--color", metavar="auto|always|never", callback=_set_color, help="Colour on stdout."
        ),
    ] = None,
    _no_input: Annotated[
        bool,
        typer.Option("--no-input", callback=_set("no_input"), help="Never ask; fail instead."),
    ] = False,
    _yes: Annotated[
        bool,
        typer.Option("--yes", "-y", callback=_set("assume_yes"), help="Answer every question yes."),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version."),
    ] = False,
    help: Annotated[
        bool,
        typer.Option("--help", "-h", is_eager=True, callback=_show_help, help="Print this."),
    ] = False,
) -> None:
    """The global flags, as Typer reads them."""
