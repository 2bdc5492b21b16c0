"""What the owner of a GPU runs first (`scripts/gpu_check.sh`): does training work on this machine, how fast is it, what does it hold.

Every check runs in a process of its own with a time limit, so that one that crashes or hangs costs its own lines and no others.
"""
