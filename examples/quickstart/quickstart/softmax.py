"""Train and measure softmax regression, and give every node its share of the digits."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord
from sklearn.datasets import load_digits

HELD_OUT = 360


@cache
def digits():
    """Return the 1,797 images, float32 (n, 64) in [0, 1], and their digits (n,), in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order]


def share_of(partition: int, num_partitions: int):
    """Return the images and digits of one node."""
    images, labels = digits()
    return images[HELD_OUT + partition :: num_partitions], labels[HELD_OUT + partition :: num_partitions]


def initial_model() -> ArrayRecord:
    """Return weights and bias of zero."""
    return ArrayRecord({"weight": Array(np.zeros((64, 10), np.float32)), "bias": Array(np.zeros(10, np.float32))})


def train_model(arrays: ArrayRecord, images, labels, learning_rate: float, steps: int = 10) -> ArrayRecord:
    """Return the model after some steps of gradient descent."""
    weight, bias = (array.numpy().copy() for array in arrays.values())
    for _ in range(steps):
        error = _probabilities(images @ weight + bias)
        error[np.arange(len(labels)), labels] -= 1
        weight -= learning_rate * images.T @ error / len(labels)
        bias -= learning_rate * error.mean(axis=0)
    return ArrayRecord({"weight": Array(weight), "bias": Array(bias)})


def held_out_accuracy(arrays: ArrayRecord) -> float:
    """Return the accuracy on the images that no node has."""
    weight, bias = (array.numpy() for array in arrays.values())
    images, labels = digits()
    return float(((images[:HELD_OUT] @ weight + bias).argmax(axis=1) == labels[:HELD_OUT]).mean())


def _probabilities(scores):
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)
