"""What one part of a run costs alone.

    python -m benchmarks.parts.algorithms    every advantage, shaping, selection, credit and the packing
    python -m benchmarks.parts.planning      samplers that weigh rows, by rows in the data
    python -m benchmarks.parts.loader        decoding videos, and the time to a first step with many rows
    python -m benchmarks.parts.view          opening a run in the viewer
    python -m benchmarks.parts.view_pairs    keeping groups for the viewer, in pairs of runs

`view_cost` is a plug-in that measures the last one inside a run.
"""
