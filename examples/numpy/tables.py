"""Divides scikit-learn's table of breast tumours: `python tables.py FOLDER` writes FOLDER/0.csv to FOLDER/3.csv, and
FOLDER/model.safetensors, the first version of the model.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_breast_cancer

CLIENTS = 4


def tables():
    """The rows of each client: 30 measurements and 1 for a benign tumour. Larger tumours are with later clients."""
    inputs, targets = load_breast_cancer(return_X_y=True)
    rows = np.column_stack([(inputs - inputs.mean(axis=0)) / inputs.std(axis=0), targets])
    by_radius = np.argsort(rows[:, 0], kind="stable")
    return [rows[np.sort(part)] for part in np.array_split(by_radius, CLIENTS)]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for client, rows in enumerate(tables()):
        np.savetxt(folder / f"{client}.csv", rows, delimiter=",")
    save_file({"weight": np.zeros(30, np.float32), "bias": np.zeros(1, np.float32)}, folder / "model.safetensors")
