"""Shapes in noisy pictures, found by pixel: the pictures of a client, and a small U-Net."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import interpolate, max_pool2d
from torch.utils.data import TensorDataset


def pictures(path):
    """A client's file, or in a simulation a folder with the files of all clients."""
    files = [np.load(file) for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]

    def part(name):
        inputs, targets = (np.concatenate([file[f"{name}_{kind}"] for file in files]) for kind in ("x", "y"))
        dataset = TensorDataset(torch.from_numpy(inputs).float(), torch.from_numpy(targets).long())
        dataset.groups = np.repeat(range(len(files)), [len(file[f"{name}_x"]) for file in files])  # by client
        return dataset

    return part("train"), part("test")


def block(inputs, outputs):
    layers = []
    for size in (inputs, outputs):
        layers += [nn.Conv2d(size, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine, self.medium, self.coarse = block(1, 8), block(8, 16), block(16, 24)
        self.medium_up, self.fine_up = block(40, 16), block(24, 8)
        self.last = nn.Conv2d(8, 4, 1)  # background, disc, frame, cross

    def forward(self, pictures):
        fine = self.fine(pictures)
        medium = self.medium(max_pool2d(fine, 2))
        coarse = self.coarse(max_pool2d(medium, 2))
        medium = self.medium_up(torch.cat([medium, interpolate(coarse, scale_factor=2)], dim=1))
        return self.last(self.fine_up(torch.cat([fine, interpolate(medium, scale_factor=2)], dim=1)))
