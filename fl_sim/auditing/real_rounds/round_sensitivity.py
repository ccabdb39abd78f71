"""Run one real round on two adjacent corpora without noise, and compare the difference with its bound.

The corpora have the same users, sentences and mentions. In D the sentences of u' and those that mention e' are real
text; in D' they add nothing. Seeds are equal, so both rounds make the same draws. If sentences are clipped, the
released sums may then differ by at most

    ( Σ_f min(K_f, 2ŵ) + min(K', ŵ) ) · c,

where K_f and K' count the eligible sentences with e' of user f (none if e' is not sampled, whatever the round selected)
and those of u'; else by β for u', and per user who mentions e' by β, or 2β if other sentences of the user take part
(docs/privacy-proofs.md, sections 4, 6). The difference includes the votes on an adaptive clip. It is that of the
released model times the public denominator, so that a denominator that depends on the data shows, too. Every sentence
with e' also mentions an entity before e' and one after it; if entities are sampled, one round is drawn in which these
two are sampled and e' is not. Both protected units own the same sentence, whose gradient is longer than c: without
dropout the bound is met exactly, and any norm that is computed too small exceeds it.

>>> difference = RoundDifference("one sentence", length=0.05, bound=0.05, entity_sentences=0, user_sentences=1)
>>> difference.holds, difference.ratio
(True, 1.0)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.inline_rounds import Release
from fl_sim.auditing.real_rounds.canary_cases import AWD_LSTM, LOCAL_STEPS, LORA, UNSAMPLED, USER_LEVEL, CanaryCase
from fl_sim.auditing.real_rounds.canary_federation import run_real_rounds
from fl_sim.auditing.worst_case_corpora import BACKGROUND, ENTITY, LONE, CopiedCorpus, Scenario, build
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.selection import Selection
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.primitives.sampling import round_seed, sampled_entities

Ints = NDArray[np.int64]
_MENTIONED, _PROTECTED = (0, 1, 2), 1  # the entities of a sentence with e', in order, and e' among them
_NO_NOISE = 1e-9
_ROUNDING = 1e-3  # of the bound: sums and models are float32
_BYSTANDERS = 12


@dataclass(frozen=True, slots=True)
class RoundDifference:
    """Hold the difference of two adjacent rounds.

    Attributes:
        name: the mechanism and the model.
        length: the norm of the difference of the released sums, with the votes.
        bound: the bound for the draws of the round.
        entity_sentences: the number of eligible sentences with e' of other users than u'.
        user_sentences: the number of eligible sentences of u'.
    """

    name: str
    length: float
    bound: float
    entity_sentences: int
    user_sentences: int

    @property
    def ratio(self) -> float:
        """Return length / bound; 0 if both are 0."""
        if self.bound == 0:
            return 0.0 if self.length == 0 else np.inf
        return self.length / self.bound

    @property
    def holds(self) -> bool:
        """Tell whether the difference is within its bound, up to the rounding of float32."""
        return self.ratio <= 1 + _ROUNDING

    def record(self) -> dict[str, str | float]:
        """Return the difference as one JSON object."""
        names = ("length", "bound", "entity_sentences", "user_sentences", "holds")
        return {"case": self.name, **{name: getattr(self, name) for name in names}}


_BOUNDED = Scenario(entity_users=4, entity_sentences=1, user_sentences=3, background=1, companions=2)
_MANY = Scenario(entity_users=3, entity_sentences=6, user_sentences=6, background=2, companions=2)
_ALONE = Scenario(entity_users=4, entity_sentences=1, user_sentences=3, companions=2)
_ALWAYS = replace(UNSAMPLED, noise_multiplier=1.0, clip_norm=0.05)
_DRAWN = replace(_ALWAYS, q_e=0.8, q_s=0.6)
_USER_CLIP = replace(USER_LEVEL, q_u=0.7, clip_norm=0.05)
_STEPS = replace(_USER_CLIP, local=LOCAL_STEPS)
_ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=1.5)

SENSITIVITY_CASES = {
    "gpt2": CanaryCase(_DRAWN, _BOUNDED),
    "gpt2, beyond the cap": CanaryCase(_ALWAYS, _MANY),
    "automatic clipping": CanaryCase(replace(_DRAWN, clipping="automatic", clip_stability=1e-4), _BOUNDED),
    "lora": CanaryCase(replace(_DRAWN, clip_norm=0.002), _BOUNDED, LORA),
    "awd-lstm with dropout": CanaryCase(_DRAWN, _BOUNDED, AWD_LSTM),
    "adaptive clip": CanaryCase(replace(_ALWAYS, adaptive=_ADAPTIVE), _BOUNDED),
    "user_level, gradients": CanaryCase(_USER_CLIP, _ALONE),
    "user_level, local steps": CanaryCase(_STEPS, _ALONE),
    "user_level, local steps, dropout": CanaryCase(_STEPS, _ALONE, AWD_LSTM),
}


def measure_rounds(name: str, *, rounds: int = 3, seed: int = 0) -> Iterator[RoundDifference]:
    """Yield the difference of adjacent rounds of a case, for several draws.

    Args:
        name: a key of :data:`SENSITIVITY_CASES`.
        rounds: the number of pairs of rounds, with seeds of their own. If entities are sampled, there is one more, in
            which e' is not sampled and all other entities of its sentences are.
        seed: of the model and of the draws.
    """
    case = SENSITIVITY_CASES[name]
    corpus = build(case.scenario, 1, bystanders=_BYSTANDERS)
    own, *others = Corpus.open("bundled").texts("train")[:100].to_pylist()
    other = iter(others)
    texts = [next(other) if kind == BACKGROUND else own for kind in corpus.kinds]  # also of bystanders
    model = load_model(case.model, seed)
    mechanism = case.with_population(corpus.ownership.num_users, _NO_NOISE)
    numbers = list(range(rounds))
    if mechanism.q_e < 1:
        all_but_protected = np.array(_MENTIONED) != _PROTECTED
        draws = ((number, _sampled(_seed_of(seed, number), mechanism.q_e)) for number in itertools.count())
        numbers.append(next(number for number, sampled in draws if np.array_equal(sampled, all_but_protected)))
    for number in numbers:
        yield measure_round(name, model, corpus, texts, mechanism, _seed_of(seed, number))


def _seed_of(seed: int, number: int) -> int:
    return streams.derived_seed(seed, "adjacent rounds", number)


def _sampled(seed: int, q_e: float) -> NDArray[np.bool_]:
    """Return whether each entity is sampled in round 1, bool (3,)."""
    return sampled_entities(round_seed(seed, 1), np.array(_MENTIONED), q_e)


def measure_round(
    name: str, model: LanguageModel, corpus: CopiedCorpus, texts: list[str], mechanism: Mechanism, seed: int
) -> RoundDifference:
    """Return the difference of one round on D and D', with equal draws.

    Args:
        corpus: the users, sentences and entities of both; e' is the second entity of every sentence that mentions it.
        texts: the sentences of D.
        mechanism: the mechanism, with noise that is negligible.
    """
    tokens = [example.tokens for example in model.encode(texts)]
    plan = PrivacyPlan(mechanism=mechanism, rounds=1, delta=0.5)
    chosen, releases = list[Selection](), list[Release]()

    def all_of(selection: Selection) -> Selection:
        chosen.append(selection)
        return selection

    def without(selection: Selection) -> Selection:
        return selection.only(corpus.kinds[selection.sentences] == BACKGROUND)

    for keep in (all_of, without):
        run_real_rounds(model, corpus.ownership, tokens, keep, plan, seed, releases.append)
    vectors = [release.noisy_sum for release in releases]
    votes = [release.reply.votes if release.reply else 0.0 for release in releases]
    length = mechanism.client_rule(mechanism.clip_norm).joint_norm(
        float(np.linalg.norm(vectors[0] - vectors[1])), votes[0] - votes[1]
    )
    kinds, owner = corpus.kinds[chosen[0].sentences], np.repeat(chosen[0].users, chosen[0].counts)
    counted = np.ones(len(kinds), dtype=np.bool_) if _sampled(seed, mechanism.q_e)[_PROTECTED] else kinds != ENTITY
    return RoundDifference(
        name,
        length,
        _bound(mechanism, kinds[counted], owner[counted]),
        entity_sentences=int((kinds == ENTITY).sum()),
        user_sentences=int((kinds == LONE).sum()),
    )


def _bound(mechanism: Mechanism, kinds: Ints, owner: Ints) -> float:
    """Return the bound for the eligible sentences of a round."""
    clip, user_clip = mechanism.clip_norm, mechanism.user_clip(mechanism.clip_norm)
    of_affected = np.bincount(owner[kinds == ENTITY], minlength=int(owner.max(initial=0)) + 1)
    of_user = int((kinds == LONE).sum())
    event = mechanism.event()
    if event is not None and event.clips_sentences:
        return clip * float(np.minimum(of_affected, 2 * mechanism.user_cap).sum() + min(of_user, mechanism.user_cap))
    own = np.bincount(owner[kinds == BACKGROUND], minlength=len(of_affected))
    return user_clip * float(np.where(own > 0, 2, 1)[of_affected > 0].sum() + bool(of_user))
