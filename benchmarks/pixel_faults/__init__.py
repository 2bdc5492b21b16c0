"""Twelve faults of pixels, asked of trainers. `python -m benchmarks.pixel_faults` makes docs/benchmarks/pixel_faults.md."""
