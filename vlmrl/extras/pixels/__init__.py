"""Pixel faults: twelve faults of trainers that rewarded one picture and trained on another, asked of a trainer by measurement."""
