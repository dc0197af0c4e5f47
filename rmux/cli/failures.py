"""How a failure is told: three lines for people, one JSON object for programs."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from rmux import __version__
from rmux.cli.exit_codes import ExitCode, code_of, is_retryable
from rmux.cli.output import Output
from rmux.config import state_dir
from rmux.errors import RmuxError, UserError


def report(out: Output, error: RmuxError, *, as_json: bool) -> ExitCode:
    """Say what failed, why, and what to do next; returns the exit code."""
    code = code_of(error)
    for line in _lines(error):
        out.say(line)
    if as_json:
        from rmux.cli.documents import ErrorDocument

        document = ErrorDocument(
            code=error.code,
            exit_code=int(code),
            message=error.message,
            hint=error.hint,
            details=error.details,
            retryable=is_retryable(code),
        )
        out.say(document.to_json())
    return code


def usage_error(error: Any) -> RmuxError:
    """What Typer found wrong with the command line, as ours."""
    message = error.format_message().rstrip(".").replace("\n\t", " ").replace("\n", " ")
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "rmux"
    return UserError(f"{message[:1].lower()}{message[1:]}", hint=f"{path} --help")


def is_help(error: Any) -> bool:
    """A noun without a verb: Typer's message is the help text itself."""
    return bool(error.format_message().startswith("Usage: "))


def wants_json(argv: list[str]) -> bool:
    """Whether the command line asks for JSON, for a line that could not be read to its end."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    joined = {f"{flag}={form}" for flag in ("-o", "--output") for form in ("json", "jsonl")}
    for index, token in enumerate(own):
        if token == "--json" or token in joined or token in ("-ojson", "-ojsonl"):
            return True
        if token in ("-o", "--output") and own[index + 1 : index + 2] in (["json"], ["jsonl"]):
            return True
    return False


def crash_file(argv: list[str]) -> Path | None:
    """Write the traceback being handled below the state folder; None if that cannot be done."""
    from datetime import UTC, datetime

    folder = state_dir() / "crashes"
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}.txt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(
            f"rmux {__version__}, Python {sys.version}\narguments: {argv!r}\n\n"
            f"{traceback.format_exc()}"
        )
    except OSError:
        return None
    return path


def _lines(error: RmuxError) -> list[str]:
    lines = [f"rmux: error [{error.code}]: {error.message}"]
    why = error.details.get("why")
    reasons = [why] if isinstance(why, str) else why or []
    lines.extend(f"  why   {reason}" for reason in reasons)
    if error.hint:
        lines.append(f"  next  {error.hint}")
    return lines
