"""ARCHITECTURE.md lists every module with one line.

After a module came or went: python tests/unit/test_architecture.py
"""

import ast
import re
from pathlib import Path

import rmux

ROOT = Path(rmux.__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
SECTION = re.compile(r"(<!-- modules -->\n).*(<!-- end -->)", re.DOTALL)


def modules():
    for path in sorted((ROOT / "rmux").rglob("*.py")):
        own = ast.get_docstring(ast.parse(path.read_text()))
        if own or path.name != "__init__.py":
            first = " ".join((own or "the console script").split("\n\n")[0].split())
            yield path.relative_to(ROOT / "rmux"), first


def section():
    lines, folder = [], None
    for path, about in modules():
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"`rmux/{folder}/`" if folder != Path() else "`rmux/`", ""]
        lines.append(f"* `{path.name}`: {about}")
    return "\n".join([*lines, "", ""])


def test_every_module_is_listed_once_and_no_other():
    listed = re.findall(r"^\* `(\w+\.py)`: \S", SECTION.search(PAGE.read_text())[0], re.MULTILINE)
    assert listed == [path.name for path, _ in modules()]


def test_what_the_page_says_is_started_with_python_m_can_be():
    named = re.findall(r"`python -m (rmux[\w.]+)`", PAGE.read_text())
    assert len(named) >= 3
    for name in named:
        folder = ROOT.joinpath(*name.split("."))
        assert folder.with_suffix(".py").exists() or (folder / "__main__.py").exists(), name


if __name__ == "__main__":
    PAGE.write_text(SECTION.sub(lambda found: found[1] + section() + found[2], PAGE.read_text()))
