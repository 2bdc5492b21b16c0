"""Environments: worlds that answer actions with screens. The protocol, worker processes for them, and the embedded ones."""
