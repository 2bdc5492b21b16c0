"""Rewards that ask a service over HTTP: judges (OpenAI-compatible chat) and reward models (one number per answer).

Read in this order: `judges` (questions in, verdicts out), `prompts` and `material` (what is asked and shown), `verdicts` (what comes back,
checked, or the reason why there is none), `services` (those of a run; `judged` makes a reward of one question per rollout). Below them:
`client` (parallel requests with retries), `throttle` (limit and breaker), `transport` (one HTTP exchange),
`network` (one deadline for all of it), `cache` (verdicts on disk).

No failure is ever turned into a score, and a service that stays down ends the run with `RemoteError` (exit code 69), so that the same
command goes on when it is back.
"""
