"""Flower and Ray without any arithmetic: every node sends the model back that it got, and the server adds them up.

The name of the contender begins with the number of nodes, such as ``64 nodes, Flower alone``.
"""

import logging
import os
import sys
import time

import numpy as np
import plain
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

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
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # for busy machines
    os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
    plain.redirect_output()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    ray = {"num_cpus": SPEC["workers"], "include_dashboard": False}
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    try:
        run_simulation(server, client, NODES, backend_config=resources)
    finally:
        sys.stderr.flush()
