"""Evaluation through lmms-eval (0.7.2 up to, not including, 0.8): its tasks on our engines, and our tasks on its command line.

`run` evaluates in this process or in a child, `model` is the model object, `functions` and `task_files` are our tasks as upstream
YAML, `entry` is what upstream finds by itself, `compat` is what must be undone after upstream has run. lmms-eval is imported here and
nowhere else, and only when one of these is used.
"""
