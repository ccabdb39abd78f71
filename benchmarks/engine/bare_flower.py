"""Flower and Ray without any arithmetic: every node sends the model back that it got, and the server adds them up.

The name of the contender begins with the number of nodes, such as ``64 nodes, Flower alone``.
"""

import time

import numpy as np
import plain
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

SPEC = plain.read_spec()
NODES = int(SPEC["name"].split()[0])
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    numbers = message.content["model"]["weights"].numpy()
    return Message(RecordDict({"model": ArrayRecord({"weights": Array(numbers.copy())})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    size = sum(tensor.numel() for tensor in plain.gpt2(SPEC).state_dict().values())
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    weights, asked = np.ones(size, np.float32), 1
    while asked:
        for _ in range(asked):
            record = ArrayRecord({"weights": Array(weights)})
            messages = [Message(RecordDict({"model": record}), node, "train") for node in nodes]
            total = np.zeros(size)
            for reply in grid.send_and_receive(messages):
                total += reply.content["model"]["weights"].numpy()
        asked = plain.next_request()


if __name__ == "__main__":
    plain.simulate(server, client, NODES, SPEC["workers"])
