"""The ClientApp: a node holds many persons, each of them a user whose gradient is bounded by itself."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adult_logistic.census_rows import numbers_of, persons, stepped
from fl_sim.flower import UserLevelClipping


def users_of(context: Context) -> list[str]:
    """Return the identities of the node's users: no two nodes may have one in common."""
    node = context.node_config
    numbers = numbers_of(context.run_config["data"], node["partition-id"], node["num-partitions"])
    return [f"{number}" for number in numbers]


app = ClientApp(mods=[UserLevelClipping(users=users_of)])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Take one step on the data of one person; called once for every sampled one."""
    features, rich = persons(context.run_config["data"], "data")
    person = int(msg.content["config"]["user-id"])
    arrays = stepped(msg.content["arrays"], features[person : person + 1], rich[person : person + 1])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)
