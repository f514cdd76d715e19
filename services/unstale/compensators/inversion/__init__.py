"""Reconstructing what data would have made an update: the optimisation behind gradient inversion."""
