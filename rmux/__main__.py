from rmux.cli.main import entry

entry()
