"""Commands beside the work itself: `vlmrl list` in all its forms, and of `vlmrl tools` the generated worlds and their cache."""
