"""The command `new`: a recipe of one's own, from the rows that it is to be trained on or from a starter of a task."""
