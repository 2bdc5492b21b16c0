"""What memory a run needs by `vlmrl plan`: measured on a CPU for small models, computed for published ones.

python -m benchmarks.memory.plan_memory      the plan against bytes that are alive
python -m benchmarks.memory.small_cards      what fits cards of 8 to 80 GB
python -m benchmarks.memory.scaling_table    the table of docs/scaling.md
"""
