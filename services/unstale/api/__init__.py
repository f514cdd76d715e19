"""The functions of `unstale` for notebooks and scripts, which docs/python.md describes.

They do not read the environment, print nothing but a progress bar, and leave signal handlers and logging alone.
"""
