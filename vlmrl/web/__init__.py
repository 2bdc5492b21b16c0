"""What `vlmrl serve`, `vlmrl view` and the rollout server share: who may ask, how much at once, and how a port is opened."""
