"""What a whole training step costs, ours, TRL's and ms-swift's: seconds, memory, counted operations, and the lines that it runs.

    python -m benchmarks.step.vs_trl         our step beside that of TRL's trainer, and of ms-swift's
    python -m benchmarks.step.scaling        how seconds and memory grow with each size
    python -m benchmarks.step.shards         every training engine on two ranks
    python -m benchmarks.step.overlap        what sampling ahead gains where rewards are waited for
    python -m benchmarks.step.trace_step     files, functions and lines that one plain step runs

`workload` makes models and media, `ours`, `peer_trl` and `peer_swift` are the steps, `meter` reads time and memory, `flops` and
`flops_families` count operations.
"""
