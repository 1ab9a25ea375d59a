"""The web console: a server that reads the files of runs, and its pages.

Start with `app.py`.
"""
