"""Models of runs as files for other programs: conversion, verification.

Read `exporting.py` first: it writes the folder of an export. `tensor_functions.py` holds the computation that is
converted, `runtime_script.py` the program that runs an export without this library.
"""
