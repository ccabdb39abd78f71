"""Build a CNN of 1,370 parameters, train it on a user's digits, and measure it on held-out ones."""

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord
from sklearn.datasets import load_digits
from torch import nn

HELD_OUT = 360


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 1,797 images, float32 (n, 1, 8, 8) in [0, 1], and their digits, int64 (n,), in a fixed order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(images[order] / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels[order])


def digits_of(user: int, users: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images and digits of one user, who has some five of them."""
    images, labels = digits()
    return images[HELD_OUT + user :: users], labels[HELD_OUT + user :: users]


def build_model(arrays: ArrayRecord | None = None) -> nn.Module:
    """Return the model with the parameters ``arrays``, or with its public initial ones.

    It keeps no statistics of batches: these would be data of users, which no noise protects.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    if arrays is not None:
        model.load_state_dict(arrays.to_torch_state_dict())
    return model


def train_model(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, learning_rate: float, steps: int) -> None:
    """Take ``steps`` steps of gradient descent on all images of a user."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


@torch.no_grad()
def held_out_accuracy(arrays: ArrayRecord) -> float:
    """Return the accuracy on the images that no user has."""
    images, labels = digits()
    guesses = build_model(arrays)(images[:HELD_OUT]).argmax(dim=1)
    return float((guesses == labels[:HELD_OUT]).float().mean())
