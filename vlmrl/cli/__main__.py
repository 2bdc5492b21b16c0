"""`python -m vlmrl.cli`: the command line, for a launcher that wants a module."""

from vlmrl.cli import main

main()
