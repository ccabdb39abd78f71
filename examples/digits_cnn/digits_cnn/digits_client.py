"""The ClientApp: a node is one user, and ``userlevelclipping_mod`` bounds what the user can change."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_cnn.small_cnn import build_model, digits_of, train_model
from fl_sim.flower import userlevelclipping_mod

app = ClientApp(mods=[userlevelclipping_mod])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the user's digits."""
    config, model = context.run_config, build_model(msg.content["arrays"])
    images, labels = digits_of(context.node_config["partition-id"], config["users"])
    train_model(model, images, labels, config["learning-rate"], config["local-steps"])
    metrics = MetricRecord({"num-examples": len(labels)})  # it stays on the node
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)
