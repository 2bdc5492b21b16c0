"""`python -m vlmrl`: the same command line as `vlmrl`."""

from vlmrl.cli import main

main()
