"""Vision: conversion of images and annotations to the files that Model Garden's experiments read, and pictures of them.

Start with `conversion/example_rows.py`.
"""
