"""Objectives whose optimum is known, clients that train on them, and closed forms of the theorems about them."""
