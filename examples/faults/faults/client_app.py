"""The ClientApp: a node is one user, whose data are a few generated numbers; its update is not bounded here."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Move the model towards the mean of the user's rows."""
    user, arrays = int(context.node_config["partition-id"]), message.content["arrays"]
    rows = np.random.default_rng(user).normal(size=(5 + user, 40))
    moved = {
        "weight": arrays["weight"].numpy() + 0.1 * (rows.mean(axis=0) - arrays["weight"].numpy()),
        "bias": np.asarray(arrays["bias"].numpy() + 0.1 * rows.mean()),
        "running_mean": 0.9 * arrays["running_mean"].numpy() + 0.1 * rows.mean(axis=0)[:8],
    }
    metrics = {"num-examples": len(rows), "train_loss": float((rows**2).mean())}
    return Message(
        RecordDict({"arrays": ArrayRecord({k: Array(v) for k, v in moved.items()}), "metrics": MetricRecord(metrics)}),
        reply_to=message,
    )
