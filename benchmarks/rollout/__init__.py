"""What generating answers costs with each engine, and whether engines follow the weights.

    python -m benchmarks.rollout.rollout          whole programs, engines in turns, training steps and evaluations
    python -m benchmarks.rollout.rollout_syncs    many synchronisations of weights: answers and memory

`programs`, `engines`, `steps` and `evals` are the parts of the first. vLLM comes with benchmarks/setup.sh.
"""
