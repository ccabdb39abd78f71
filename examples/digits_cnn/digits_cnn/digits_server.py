"""The ServerApp: DP-FedAvg over users, measured on digits that no user has."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_cnn.small_cnn import build_model, held_out_accuracy
from fl_sim.flower import UserLevelDifferentialPrivacy
from fl_sim.formats import format_epsilon

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the accuracy beside its ε."""
    config = context.run_config
    strategy = UserLevelDifferentialPrivacy(
        FedAvg(),
        population=config["users"],
        sampling_rate=config["sampling-rate"],
        clip_norm=config["clip-norm"],
        target_epsilon=config["target-epsilon"],
        delta=config["delta"],
        seed=None if config["seed"] < 0 else config["seed"],
    )
    initial = ArrayRecord(build_model().state_dict())
    result = strategy.start(grid, initial, num_rounds=config["num-server-rounds"], evaluate_fn=evaluate)
    accuracy, epsilon = held_out_accuracy(result.arrays), format_epsilon(strategy.epsilon())
    print(f"accuracy on held-out digits: {accuracy:.3f} at ε {epsilon}, δ {config['delta']:g}, any user")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the model of a round, on public digits."""
    return MetricRecord({"accuracy": held_out_accuracy(arrays)})
