"""What runs learn on generated worlds, over seeds and beside controls, and what families of models keep.

python -m benchmarks.learning.toy_video        the shell game, the main job
python -m benchmarks.learning.toy_grounding    temporal grounding
python -m benchmarks.learning.toy_desk         episodes of several turns; its control is `toy_desk_plugin`
python -m benchmarks.learning.rollout_job      the main job with each engine for rollouts
python -m benchmarks.learning.sharded_job      the main job in shards, killed three times
python -m benchmarks.learning.families         the promises of `vlmrl check` on every configuration
python -m benchmarks.learning.family_gain      what RL teaches families without code of their own
python -m benchmarks.learning.family_turns     the same in conversations of two turns, in shards, killed at random and with vLLM
"""
