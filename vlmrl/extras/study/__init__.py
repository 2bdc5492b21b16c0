"""Several methods over several seeds from one file: what is asked and how surely it can be told, the runs, and the verdicts."""
