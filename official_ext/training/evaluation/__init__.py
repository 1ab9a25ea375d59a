"""Evaluations of a trained model that one can look at: the common part of `official-ext evaluate`.

`evaluated_data.py` chooses the data, `class_figures.py` computes, and `report_files.py` writes. The evaluators are in
`vision/evaluation` and `language/evaluation`.
"""
