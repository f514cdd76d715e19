"""The fuzz targets, one per file. Each has `run(data, note)`, which raises when an invariant is violated.

data: the input. note: called with hashable facts; a new fact selects an input, also where
the code behind it is not Python.
"""
