"""Measurements: what a step costs, what it takes beside other trainers, what is learnt. `python -m benchmarks.FOLDER.PROGRAM --help`.

Run from the root of the repository. A program's page in docs/benchmarks has the program's name; finished cells are kept, so a program that
was stopped goes on. `common.py` is what the programs share.

* `step`: a whole training step, beside TRL's, by sizes and in shards
* `turns`: a step of episodes of several turns
* `rollout`: engines that generate
* `parts`: one part of a run alone: algorithms, planning, loading, the viewer
* `memory`: what a run needs by `vlmrl plan`
* `learning`: what runs on generated worlds learn, over seeds
* `claims`: which claims of papers hold on generated worlds
* `gpu_check`: what the owner of a GPU runs first
"""
