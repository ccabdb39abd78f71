"""A strategy of your own: uedp in which a short message counts less than a full one.

A strategy says how a user's sentences become one bounded vector, how much noise the sum of these vectors gets, and what
a round releases. It is one class, found by its import path:

    fl-sim run run.toml --set privacy.strategy=length_weighted:LengthWeighted --set privacy.full_length=12

This one changes one thing of uedp. There, a node sends the sum of a user's clipped gradients, Π_β(Σ_s Π_c(−∇l(θ, s))).
Here, sentence s counts with the weight w(s) = min(1, tokens of s / full_length): a "thanks!" says little of how people
write, but once it is clipped it moves the model as far as a long sentence does.

Why its ε is true is said at `event`, the one place that the accountant believes.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.training import BoundedSum, Cohort, add_client_updates
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.privacy_config import PrivacyConfig
from pydantic import Field


@dataclass(frozen=True, kw_only=True)
class WeightedByLength(ClientRule):
    """What nodes receive: the bounds of every rule (q_e, q_s, c and β), and the length of a full sentence.

    Only plain fields: a rule travels as the import path of its class and its fields in JSON.
    """

    full_length: int

    def weights(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return w(s) in (0, 1] of sentences of so many tokens, float64 (S,), from int64 (S,)."""
        return np.minimum(lengths / self.full_length, 1.0)


@add_client_updates.register
def add_weighted_by_length(rule: WeightedByLength, total: BoundedSum, cohort: Cohort) -> None:
    """What nodes compute: add Π_β(Σ_s w(s)·Π_c(−∇l(θ, s))) of every user to `total`.

    `cohort.selection` holds the sampled sentences alone (users, sentences and all entities of a sentence were sampled).
    `user_sums` clips every gradient to c and weighs it; `add_users` scales each user's sum to within β.
    """
    selection = cohort.selection
    lengths = cohort.examples.encoded.lengths[selection.sentences]
    weights = np.split(rule.weights(lengths), np.cumsum(selection.counts)[:-1])
    of_users = (sentences for _, sentences in cohort.users())
    total.add_users(user_sums(cohort.model, of_users, rule.sentence_clip, cohort.mask_seed, weights))


class LengthConfig(PrivacyConfig):
    """The keys of [privacy] that this strategy reads besides those of every strategy."""

    # Enforced before the first round where [privacy] leaves them out, as for uedp.
    default_bounds: ClassVar = {"entity_bound": 10, "user_sentences": 32}

    full_length: int = Field(12, ge=1, description="tokens from which on a sentence counts fully")


@dataclass(frozen=True, kw_only=True)
class LengthWeighted(Mechanism):
    """User-entity DP with sentences weighted by their length."""

    Config = LengthConfig
    # Used for what [privacy] leaves out.
    defaults: ClassVar = {**Mechanism.defaults, "q_e": 0.5, "q_s": 0.1, "user_cap": 2.0, "noise_multiplier": 4.0}
    needs_entities = True
    protects = "one user and one entity at once: all the user's sentences, all sentences with the entity"

    full_length: int = 12  # of the configuration; recorded with the run

    def client_rule(self, clip_norm: float) -> ClientRule:
        """Return what nodes follow in a round whose sentence clip is c = `clip_norm`."""
        return WeightedByLength(**self.bounds(clip_norm), sentence_clip=clip_norm, full_length=self.full_length)

    def event(self) -> RoundEvent:
        """Return what is true of one round: that of uedp.

        The theorems ask three things of a round (docs/privacy.md). (1) Users, entities and sentences are sampled
        independently with q_u, q_e, q_s: the sampling is uedp's. (2) Adding or removing one sentence moves its user's
        sum by at most c, whatever else is there: w(s) depends on s alone and is at most 1, so ‖w(s)·Π_c(g)‖ ≤ c.
        (3) A user's vector has norm at most β, and the sum gets Gaussian noise of standard deviation z·β: `add_users`
        and `noise_std`, which this class leaves as it is. `full_length` is a public setting.

        A weight that depended on the user's other sentences, or on how often an entity is mentioned, would break (2).
        """
        return RoundEvent("uedp", self.noise_multiplier, self.q_u, self.q_e, self.q_s, self.user_cap)
