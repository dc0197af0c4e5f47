import importlib.util
import subprocess
import sys

import rmux


def test_the_public_names_are_these():
    assert rmux.__all__ == ["__version__", "fleet", "phase", "runtime_hook", "trainer"]
    assert all(hasattr(rmux, name) for name in rmux.__all__)


def test_no_public_name_is_a_submodule_that_could_replace_it():
    assert [n for n in rmux.__all__ if importlib.util.find_spec(f"rmux.{n}")] == []


def test_importing_rmux_loads_nothing_but_itself_and_the_standard_library():
    code = """
import sys
before = set(sys.modules)
import rmux
print(*sorted(n for n in set(sys.modules) - before if n.partition(".")[0] not in
      sys.stdlib_module_names))
"""
    assert run(code).split() == ["rmux"]


def test_a_script_outside_rmux_loads_only_the_standard_library_and_rmux():
    code = """
import sys
import rmux
rmux.phase("rollout")(len)([])
rmux.runtime_hook(len)({})
loaded = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(*sorted(name for name in loaded if not name.startswith("_")))
"""
    assert run(code).split() == ["rmux"]


def run(code):
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {paths()!r}\n{code}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def paths():
    return [str(importlib.util.find_spec("rmux").origin).rpartition("/rmux/")[0]]
