"""The ServerApp: rounds of federated averaging, measured on held-out digits."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.softmax import held_out_accuracy, initial_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds."""
    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["num-server-rounds"]
    result = strategy.start(grid, initial_model(), num_rounds=rounds, evaluate_fn=evaluate)
    print(f"accuracy on held-out digits: {held_out_accuracy(result.arrays):.3f}")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the model of a round."""
    return MetricRecord({"accuracy": held_out_accuracy(arrays)})
