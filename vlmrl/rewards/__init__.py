"""Reward functions, one file per kind of answer or of judgement. Machinery that calls them is in `run`, clients of judges in `remote`.

The answer, by rule: `exact`, `choice`, `math`, `boxed`, `number`, `ocr`, `open_rouge` (text and numbers); `boxes`, `points`, `segmentation`
(places); `temporal_iou`, `highlight`, `tracking` (times, boxes over time); `gui_action`. By a model: `judge`, `rubric`, `reward_model`,
`thinking`, `faithful_judges`, `listener`. Form and length: `format`, `lengths`, `repetition`, `tool_calls`.
`rule_spatial` is for the toy world, `environment_reward` for stages with an environment.

`vlmrl.methods` imports every module here, and so registers all of them. `checks` holds what several rewards share.
"""
