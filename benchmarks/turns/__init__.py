"""What a training step of episodes costs, whose attempts have several turns with a screenshot each.

    python -m benchmarks.turns.turns           kept caches and chains against reading every turn anew
    python -m benchmarks.turns.vs_trl_turns    the same step beside that of TRL's trainer
    python -m benchmarks.turns.chains          tokens that a step computes with chains and trees: counted, not timed

`world` is what the attempts play, `ours` and `peer_trl` are the two steps, `counted` says what each has to compute.
"""
