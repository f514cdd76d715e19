"""The CNN of pfl-research's CIFAR-10 benchmark, from its description: 1,626,442 parameters for 3x32x32 and 10 classes.

Source: pfl-research (Granqvist et al., NeurIPS 2024), benchmarks/model/pytorch/cnn.py
"""

from torch import nn

PARAMETERS = 1_626_442


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions without padding, max pooling, a hidden layer of 128, dropout of 0.25 and 0.5; Xavier uniform."""
    channels, side, _ = input_shape
    module = nn.Sequential(
        *(nn.Conv2d(channels, 32, kernel_size=3), nn.ReLU()),
        *(nn.Conv2d(32, 64, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)),
    )
    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return module
