"""The ServerApp: DP-FedSGD with Adam on the server, measured on persons that no node holds."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from adult_logistic.census_rows import accuracy, initial_model
from fl_sim.flower import ServerOptimizerConfig, UserLevelDifferentialPrivacy
from fl_sim.formats import format_epsilon

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the accuracy beside its ε."""
    config = context.run_config
    strategy = UserLevelDifferentialPrivacy(
        server_optimizer=ServerOptimizerConfig(optimizer="adam", learning_rate=config["learning-rate"]),
        population=config["population"],
        sampling_rate=config["sampling-rate"],
        clip_norm=config["clip-norm"],
        target_epsilon=config["target-epsilon"],
        seed=None if config["seed"] < 0 else config["seed"],
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": accuracy(arrays, config["data"])})

    result = strategy.start(grid, initial_model(), num_rounds=config["num-server-rounds"], evaluate_fn=evaluate)
    reached, delta = accuracy(result.arrays, config["data"]), strategy.settings.delta
    print(f"accuracy on adult.test: {reached:.3f} at ε {format_epsilon(strategy.epsilon())}, δ {delta:g}, any person")
