"""Which claims of papers hold on generated worlds: `python -m benchmarks.claims`, or scripts/claims.sh.

Each regime is a study of `vlmrl.extras.study`, which runs it, measures and judges. Here is what is special: `table`, `spec` and
`regimes` say what is claimed and where, `studies` makes studies of it, `recorder` and `plugin` write rewards down, `measures` and
`mechanisms` read runs, `report` writes the page.
"""
