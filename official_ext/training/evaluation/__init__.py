"""Evaluations of a trained model that one can look at: the common part of `official-ext evaluate`.

`evaluated_data.py` chooses the data, `classifier_result.py` computes, and `results.py` writes. The evaluators are in
`vision/evaluation` and `language/evaluation`.
"""
