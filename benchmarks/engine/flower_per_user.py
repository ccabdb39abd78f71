"""Flower as in its tutorials: one node per user, and FedAvg wrapped in its strategy for central DP."""

import json
import warnings

import plain
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

SPEC = plain.read_spec()
client, server = ClientApp(), ServerApp()


def train(message: Message, context: Context) -> Message:
    tokens, module = plain.cached_workload(json.dumps(SPEC))
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=plain.RATE)
    sentences = tokens[context.node_config["partition-id"]][torch.randperm(SPEC["sentences"])]
    for batch in sentences.split(plain.BATCH):
        optimizer.zero_grad()
        plain.loss_of(module, batch).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(sentences)})}
    return Message(RecordDict(content), reply_to=message)


client.train()(train)


@server.main()
def main(grid: Grid, context: Context) -> None:
    rounds_left = [1]

    def wait_for_request(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round > 0:
            rounds_left[0] -= 1
        if rounds_left[0] == 0:
            rounds_left[0] = plain.next_request()
            if rounds_left[0] == 0:
                raise SystemExit
        return MetricRecord({})

    share = SPEC["cohort"] / SPEC["users"]
    average = FedAvg(fraction_train=share, fraction_evaluate=0.0)
    private = DifferentialPrivacyServerSideFixedClipping(average, 0.01, plain.CLIP, SPEC["cohort"])
    arrays = ArrayRecord(plain.gpt2(SPEC).state_dict())
    private.start(grid, arrays, num_rounds=10**6, evaluate_fn=wait_for_request)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    plain.simulate(server, client, SPEC["users"], SPEC["workers"])
