"""A browser without a window, driven over two pipes: pages from memory, a clock that stands still, nothing else to be reached."""
