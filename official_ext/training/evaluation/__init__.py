"""Evaluations of a trained model that one can look at: the common part of `official-ext evaluate`.

`evaluated_data.py` chooses the data, `classifier_result.py` computes, and `results.py` writes. The evaluators of Model
Garden's tasks are in `vision/evaluation` and `language/evaluation`. `custom_tasks.py` evaluates tasks that derive from
`ext.Task`.
"""
