"""pfl: federated averaging with its central Gaussian mechanism, in its own environment (make_peer_environment.py)."""

from typing import Any

import numpy as np
import plain
import torch


def main() -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class LossModule(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def loss(self, tokens: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
            return plain.loss_of(self.module, tokens)

        def metrics(self, tokens: torch.Tensor, is_eval: bool = False) -> dict[str, Any]:
            return {"loss": Weighted(0.0, 1)}

    spec = plain.read_spec()
    tokens = plain.users_of(spec)
    np.random.seed(0)  # noqa: NPY002 (pfl uses this generator)
    module = LossModule(plain.gpt2(spec))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    users = FederatedDataset(
        lambda user: Dataset((tokens[user],), user_id=str(user)), get_user_sampler("random", list(range(spec["users"])))
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(plain.CLIP, 0.01))
    backend = SimulatedBackend(users, users, [noise])
    local = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=plain.RATE, local_batch_size=plain.BATCH, local_max_grad_norm=None
    )

    rounds_left = [1]

    class WaitForRequest(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            rounds_left[0] -= 1
            if rounds_left[0] == 0:
                rounds_left[0] = plain.next_request()
            return rounds_left[0] == 0, Metrics()

    params = NNAlgorithmParams(
        central_num_iterations=10**6, evaluation_frequency=10**6, train_cohort_size=spec["cohort"], val_cohort_size=0
    )
    FederatedAveraging().run(
        params, backend, model, local, callbacks=[WaitForRequest()], send_metrics_to_platform=False
    )


plain.redirect_output()
main()
