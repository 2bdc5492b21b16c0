"""Training, evaluation and checks that take Python's own things: rows with pictures, functions as rewards (docs/python.md)."""
