"""What a run needs before it is started: memory of a rank by part, time of a step by phase, and what to change if it does not fit.

All of it is arithmetic on shapes; nothing here imports torch, reads weights or asks a device. docs/plan.md has the formulas.
"""
