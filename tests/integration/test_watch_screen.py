"""`rmux group watch` on a real terminal: it draws, and leaves the screen as it found it."""

from __future__ import annotations

import os
import signal
import sys
import time

import pexpect
import pyte
import pytest


class Terminal:
    """A watch in a pseudo-terminal of its own, and the screen as its user sees it."""

    def __init__(self, home, *, columns, rows):
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RMUX_", "XDG_", "NO_COLOR"))
        }
        env |= {"HOME": str(home), "TERM": "xterm-256color"}
        argv = ["-m", "rmux", "group", "watch", "g-000001"]
        self.child = pexpect.spawn(
            sys.executable, argv, dimensions=(rows, columns), env=env, cwd=str(home)
        )
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""

    @property
    def text(self):
        return "\n".join(self.screen.display)

    def read_until(self, found, timeout_s=30.0):
        deadline_s = time.monotonic() + timeout_s
        while not found() and time.monotonic() < deadline_s:
            try:
                chunk = self.child.read_nonblocking(65536, timeout=0.2)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                break
            self.raw += chunk
            self.stream.feed(chunk)
        assert found(), self.text

    def close(self):
        self.read_until(lambda: not self.child.isalive())
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def shown(filled, tmp_path):
    filled.serve()
    filled.rounds(5)
    terminals = []

    def show(columns, rows):
        terminal = Terminal(tmp_path, columns=columns, rows=rows)
        terminals.append(terminal)
        terminal.read_until(lambda: "iteration.end" in terminal.text)
        return terminal

    yield show
    for terminal in terminals:
        terminal.child.close(force=True)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_it_draws_what_fits_and_q_leaves_the_old_screen_and_one_line(shown, columns, rows):
    terminal = shown(columns, rows)
    assert b"\x1b[?1049h" in terminal.raw
    lines = terminal.screen.display
    assert lines[0].startswith("rmux group watch g-000001")
    assert lines[0].rstrip().endswith("[q]uit")
    assert any(line.startswith("A  math") for line in lines)
    assert any("AAABBB" in line for line in lines if line.startswith("r0/0"))
    terminal.child.send("q")
    assert terminal.close() == 0
    after = terminal.raw.rpartition(b"\x1b[?1049l")[2]
    assert after.strip().startswith(b"g-000001 UP 2 members, watched ")
    assert b"\x1b[?25h" in terminal.raw  # the cursor is back


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_restores_the_screen_too(shown, number, code):
    terminal = shown(80, 24)
    os.kill(terminal.child.pid, number)
    assert terminal.close() == code
    assert b"\x1b[?1049l" in terminal.raw
    after = terminal.raw.rpartition(b"\x1b[?1049l")[2]
    assert b"g-000001 UP 2 members, watched " in after
