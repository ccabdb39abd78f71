"""Train on the table of this node's user: ``data-path`` of the node, or in a simulation ``userK.csv`` of ``data``."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_sim.flower import userlevelclipping_mod

app = ClientApp(mods=[userlevelclipping_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take a few steps of gradient descent on the user's rows."""
    weights, bias = (message.content["arrays"][name].numpy() for name in ("weights", "bias"))
    features, labels = load(context)
    for _ in range(5):
        error = 1 / (1 + np.exp(-(features @ weights + bias))) - labels
        weights = weights - message.content["config"]["lr"] * features.T @ error / len(labels)
        bias = bias - message.content["config"]["lr"] * error.mean(keepdims=True)
    arrays = ArrayRecord({"weights": Array(weights), "bias": Array(bias)})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def load(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return the user's features, float64 (n, k), and labels, float64 (n,), 0 or 1 in the last column."""
    path = context.node_config.get("data-path")
    if path is None:
        path = Path(context.run_config["data"]) / f"user{context.node_config['partition-id']}.csv"
    table = np.loadtxt(path, delimiter=",", ndmin=2)
    return table[:, :-1], table[:, -1]
