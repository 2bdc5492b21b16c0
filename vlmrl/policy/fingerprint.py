"""One value that says whether two models hold the same weights."""

from __future__ import annotations

import hashlib

import torch

from vlmrl.policy.model import Policy


def weights_fingerprint(policy: Policy) -> str:
    """Hash all weights; equal exactly when the weights are bit-identical. Every rank calls it (`Policy.state`)."""
    digest = hashlib.sha256()
    for name, tensor in policy.state(ordered=True):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
