"""Generation by vLLM in the trainer's own process. Nothing here is imported by a run that does not ask for it."""
