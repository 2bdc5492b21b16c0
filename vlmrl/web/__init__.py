"""What `vlmrl serve` and `vlmrl view` share: who may ask, how much at once, and how a port is opened."""
