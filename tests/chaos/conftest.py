from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[1] / "integration" / "live_group.py"
_SPEC = importlib.util.spec_from_file_location("rmux_live_group", _PATH)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)


@pytest.fixture
def group(tmp_path):
    """A group of emulated jobs that is not up yet; whatever a test leaves is ended."""
    opened = live_group.open_group(tmp_path)
    yield opened
    opened.close()
