"""The ClientApp: what every node does."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.softmax import share_of, train_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the node's digits."""
    images, labels = share_of(context.node_config["partition-id"], context.node_config["num-partitions"])
    arrays = train_model(msg.content["arrays"], images, labels, context.run_config["learning-rate"])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
