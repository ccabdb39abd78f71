"""What ``uedp`` is compared with, on the same machinery: user-level DP, the published algorithm, no privacy at all."""

from __future__ import annotations

from dataclasses import replace

from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.messages import LocalRule


class UserLevelDP(BoundedSumStrategy):
    """DP-FedAvg and DP-FedSGD (McMahan et al. 2018): Poisson users, the user's update clipped to β."""

    def local_rule(self) -> LocalRule:
        return self.rule(self.local.update or "steps")


class Noiseless(BoundedSumStrategy):
    """The upper bound of utility: the same rounds without clip and noise. It protects nobody."""

    def local_rule(self) -> LocalRule:
        return self.rule(self.local.update or "gradients")


class Published(BoundedSumStrategy):
    """The UeDP paper's algorithm: v_u = w_u·Π_β(Σ_e w_e Σ_{s∋e} −∇l(θ,s) + Σ_s w_s·(−∇l(θ,s))) over sampled e and s.

    A sentence takes part as soon as one of its entities is sampled. Its ε as its paper states it is no guarantee
    (docs/privacy.md, section 3).
    """

    def local_rule(self) -> LocalRule:
        terms = self.plan.published
        if terms is None:
            raise TypeError("a plan without published terms")
        return replace(
            self.rule("published"),
            extended=terms.estimator == "f_e_plus",
            user_weight_cap=terms.user_cap,
            entity_weight_cap=terms.entity_cap,
            extended_weight_cap=terms.extended_cap,
        )
