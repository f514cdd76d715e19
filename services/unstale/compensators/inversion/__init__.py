"""Reconstruction of the training data of an update: the optimisation behind gradient inversion."""
