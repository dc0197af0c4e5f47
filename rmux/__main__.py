"""`python -m rmux`: the console script."""

from rmux.cli.main import entry

entry()
