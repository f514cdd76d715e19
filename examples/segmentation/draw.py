"""Draws the pictures of four clients: `python draw.py FOLDER` writes FOLDER/0.npz to FOLDER/3.npz."""

import sys
from pathlib import Path

import numpy as np

CLIENTS, TRAIN, TEST = 4, 64, 16
SIZE, NOISE = 16, 0.3  # pixels, and their deviation; a shape is brighter than the background by 1


def kinds(client):
    """Shares of discs, frames and crosses: clients 0 to 2 have mostly one of them, client 3 as many of each."""
    return np.full(3, 1 / 3) if client == 3 else np.where(np.arange(3) == client, 0.8, 0.1)


def picture(drawn, client):
    """A picture with a shape, and the class of each pixel."""
    rows, columns = np.indices((SIZE, SIZE))
    kind, radius = drawn.choice(3, p=kinds(client)), drawn.integers(4, 7)
    across, down = (abs(each - drawn.integers(radius, SIZE - radius)) for each in (columns, rows))
    far, near = np.maximum(across, down), np.minimum(across, down)
    inside = (across**2 + down**2 < radius**2, (far < radius) & (far > radius - 3), (far < radius) & (near < 2))[kind]
    noise = NOISE * drawn.standard_normal((SIZE, SIZE))
    return (inside + noise).astype(np.float32)[None], inside * np.uint8(1 + kind)


def arrays(client):
    """The arrays of a client's file: pictures [n, 1, SIZE, SIZE] and classes [n, SIZE, SIZE], to train and to test."""
    drawn = np.random.default_rng(client)
    x, y = map(np.stack, zip(*(picture(drawn, client) for _ in range(TRAIN + TEST)), strict=True))
    return {"train_x": x[:TRAIN], "train_y": y[:TRAIN], "test_x": x[TRAIN:], "test_y": y[TRAIN:]}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for client in range(CLIENTS):
        np.savez(folder / f"{client}.npz", **arrays(client))
