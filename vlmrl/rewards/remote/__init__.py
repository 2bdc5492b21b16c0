"""Asking models over HTTP for verdicts: judges (OpenAI-compatible chat) and reward models (one number per answer).

`session` opens the services of a run: clients, the cache of verdicts under the run's folder, meters. Reward columns reach them with
`services()`; outside a session they are those of the process, with a cache in memory. `verdicts` says what comes back: a checked
verdict or the reason why there is none. No failure is ever turned into a score, and a service that stays down ends the run with
`RemoteError` (exit code 69), so that the same command goes on when it is back.
"""
