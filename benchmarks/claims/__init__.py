"""Which claims of papers hold on generated worlds: `python -m benchmarks.claims`, or scripts/claims.sh.

`table`, `spec` and `regimes` say what is claimed and where, `cells` which runs that takes, `run` and `process` run them, `recorder` and
`plugin` write rewards down, `measures` and `mechanisms` read runs, `stats` and `judge` decide, `report` writes the page.
"""
