"""Divides scikit-learn's diabetes table: `python tables.py FOLDER` writes FOLDER/0.csv to FOLDER/3.csv."""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

CLIENTS = 4


def tables():
    """The rows of each client: ten measurements and the target. Older people are with later clients."""
    inputs, targets = load_diabetes(return_X_y=True)
    rows = np.column_stack([inputs, targets])
    by_age = np.argsort(rows[:, 0], kind="stable")
    return [rows[np.sort(part)] for part in np.array_split(by_age, CLIENTS)]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for client, rows in enumerate(tables()):
        np.savetxt(folder / f"{client}.csv", rows, delimiter=",")
