"""A stand-in for the package `desktop_env` 1.0.2 of OSWorld: same names and arguments, no machine. It runs in the driver's process.

What the machine does is told by the task's `evaluator`: `options` names what goes wrong. What is asked for is appended to `DESKTOP_LOG`.
"""
