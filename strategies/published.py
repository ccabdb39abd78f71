"""Define ``published``: the UeDP paper's algorithm (Algorithm 1).

    v_u = w_u·Π_β( Σ_e w_e Σ_{s∋e} −∇l(θ, s) + Σ_s w_s·(−∇l(θ, s)) ) over the sampled entities e and extended entities s

A sentence is eligible iff at least one of its entities is sampled. Noise, denominator and the claimed ε are those of
the paper (:mod:`fl_sim.strategies.accounting.paper_model`). The paper adds the noisy average to the model (line 15):
:data:`STATED_STEP`; any other server step is ours.

Its local batches (lines 21 to 28) are ``local.update = "steps"``: v_u = w_u·Π_β(θ_u − θ) after a pass of SGD over the
user's sentences, in batches of B = ``local.batch_size`` with η = ``local.learning_rate``. The paper gives neither, so
the default is one batch with η = 1. As printed, line 27 starts every batch at θ again, so that the last alone would
count; here a batch goes on from where the one before ended.

Guarantee: not the claimed ε, but that of :meth:`Published.event`, user-level accounting in which q_e amplifies nothing
(docs/privacy-proofs.md, section 3). Assumption: the sums of weights are public. With a weight cap, weights depend on
other users' data, so ε is that of an entity which all users mention.

>>> terms = PublishedTerms(
...     estimator="f_e_plus", noise="as-stated", user_weights=1000.0, entity_weights=200.0, extended_weights=50.0,
...     sentences=9000, sensitive_sentences=8950)
>>> mechanism = Published(population=1000, q_u=0.05, q_e=0.5, q_s=1.0, clip_norm=0.1, user_cap=1.0,
...     noise_multiplier=2.0, terms=terms)
>>> mechanism.denominator, mechanism.noise_per_clip
(7500.0, 102.0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from fl_sim.strategies.accounting import paper_model
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import NoiseScale
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED, Estimator, Floats, PublishedSettings
from fl_sim.strategies.client_rules import ClientRule, WeightedGradients, weights_of
from fl_sim.strategies.mechanism import (
    LOCAL_STEPS,
    Description,
    LocalTrainingConfig,
    Mechanism,
    Settings,
    UnreadSettings,
)
from fl_sim.strategies.postprocessing import ServerOptimizerConfig
from fl_sim.strategies.primitives.limits import PrivacyError, require
from fl_sim.strategies.privacy_config import PrivacyConfig

STATED_STEP = ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0)
"""The paper's step of the server: it adds the noisy average to the model."""

WeightCap = Annotated[float | None, Field(gt=0, le=1e9)]


class PublishedConfig(PrivacyConfig):
    """Declare the keys of ``[privacy]`` that ``published`` reads."""

    enforces_bounds: ClassVar[bool] = False

    estimator: Literal["f_e", "f_e_plus"] | None = Field(
        None,
        description="train only on sentences with a sampled entity (`f_e`), or also on sampled sentences without an "
        "entity (`f_e_plus`, the default)",
    )
    noise: NoiseScale | None = Field(
        None,
        description="noise of standard deviation σ, as in the paper (the default), or σ², as in its code, without a "
        "guarantee",
    )
    user_weight_cap: WeightCap = Field(None, description="ŵ_u of w_u = min(n_u/ŵ_u, 1); default: weights of 1")
    entity_weight_cap: WeightCap = Field(None, description="ŵ_e of w_e = min(n_e/ŵ_e, 1); default: weights of 1")
    extended_weight_cap: WeightCap = Field(None, description="ŵ_s of w_s = min(|S|/ŵ_s, 1); default: weights of 1")
    entity_weights: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="W_e, a public constant; default: with settings_from_corpus, the sum over the corpus",
    )
    extended_weights: float | None = Field(
        None,
        ge=0,
        le=1e12,
        description="W_s, a public constant; default: with settings_from_corpus, the sum over the corpus",
    )

    @model_validator(mode="after")
    def _no_target_without_a_guarantee(self) -> PublishedConfig:
        if self.noise == "as-coded" and self.target_epsilon is not None:
            raise ValueError(
                f"privacy.noise is as-coded and privacy.target_epsilon is {self.target_epsilon:g}; allowed: "
                "as-stated, because noise σ² gives no guarantee that a target could mean"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTerms:
    """Hold the estimator, the weights and the noise of the paper's algorithm.

    The weights are w_u = min(n_u/ŵ_u, 1), w_e = min(n_e/ŵ_e, 1), w_s = min(|S|/ŵ_s, 1); without a cap they are 1, as
    in the authors' code. The guarantee assumes that their sums are public.

    Attributes:
        estimator: ``f_e`` (only sentences with a sampled entity) or ``f_e_plus`` (sampled extended entities too).
        noise: ``as-stated`` (standard deviation σ) or ``as-coded`` (σ², what the authors' code draws).
        user_weights, entity_weights, extended_weights: W_u, W_e, W_s.
        sentences, sensitive_sentences: the numbers of all sentences and of sentences with an entity; only the paper's
            own ε depends on them. Both are 1 where the corpus may not be read, which makes that ε the larger.
        user_cap, entity_cap, extended_cap: ŵ_u, ŵ_e, ŵ_s; None for weights of 1.

    Raises:
        PrivacyError: a value is out of range.
    """

    estimator: Estimator
    noise: NoiseScale
    user_weights: float
    entity_weights: float
    extended_weights: float
    sentences: int
    sensitive_sentences: int
    user_cap: float | None = None
    entity_cap: float | None = None
    extended_cap: float | None = None

    def __post_init__(self) -> None:
        require(self.estimator in ("f_e", "f_e_plus"), "estimator", repr(self.estimator), "'f_e', 'f_e_plus'")
        scales = get_args(NoiseScale)
        require(self.noise in scales, "noise", repr(self.noise), ", ".join(map(repr, scales)))
        for name in ("user_weights", "entity_weights"):
            require(0 < getattr(self, name) < math.inf, name, getattr(self, name), "finite and above 0")
        require(
            0 <= self.extended_weights < math.inf, "extended_weights", self.extended_weights, "finite and at least 0"
        )
        for name in ("user_cap", "entity_cap", "extended_cap"):
            cap = getattr(self, name)
            require(cap is None or 0 < cap < math.inf, name, cap, "finite and above 0, or nothing")

    @classmethod
    def of_corpus(cls, settings: Settings) -> PublishedTerms:
        """Return the terms of a run; sums of weights that are not configured are computed from the corpus.

        Without a cap W_u is N. With a cap, at least one user must have ŵ_u sentences: max(w_u), which scales the noise,
        is then 1, also after another user joins or leaves.

        Raises:
            PrivacyError: no user has ŵ_u sentences, a value is out of range, or a sum would be computed from the corpus
                without ``settings_from_corpus``.
        """
        corpus, privacy = settings.corpus, settings.privacy_as(PublishedConfig)
        cap, from_corpus = privacy.user_weight_cap, privacy.settings_from_corpus
        _check_public_sums(privacy)
        largest = int(corpus.sentences_per_user.max())
        if cap is not None and cap > largest:
            raise PrivacyError(
                f"user_weight_cap is {cap:g}; allowed: at most {largest}, the sentences of the corpus's largest user, "
                "so that the largest weight is 1"
            )
        entities, extended = privacy.entity_weights, privacy.extended_weights
        if entities is None:
            entities = float(weights_of(corpus.sentences_per_entity, privacy.entity_weight_cap).sum())
        if extended is None and not from_corpus:
            extended = 0.0  # f_e does not read it
        elif extended is None:  # |S|·w_s: the paper sets n_s = |S|, so all these sentences have the same weight
            number = corpus.sentences_without_entity
            extended = number * float(weights_of(np.array([number]), privacy.extended_weight_cap)[0])
        return cls(
            estimator=privacy.estimator or "f_e_plus",
            noise=privacy.noise or "as-stated",
            user_weights=float(
                settings.population if cap is None else weights_of(corpus.sentences_per_user, cap).sum()
            ),
            entity_weights=entities,
            extended_weights=float(extended),
            sentences=corpus.sentences if from_corpus else 1,
            sensitive_sentences=corpus.sentences - corpus.sentences_without_entity if from_corpus else 1,
            user_cap=cap,
            entity_cap=privacy.entity_weight_cap,
            extended_cap=privacy.extended_weight_cap,
        )

    @property
    def weights_from_data(self) -> bool:
        """Return whether a user's weights depend on other users' data, so that one user changes all client updates."""
        return any(cap is not None for cap in (self.user_cap, self.entity_cap, self.extended_cap))


def _check_public_sums(privacy: PublishedConfig) -> None:
    """Refuse sums of weights that would be read off the corpus: they scale noise and denominator."""
    if privacy.settings_from_corpus:
        return
    needed = ["entity_weights"] + ["extended_weights"] * (privacy.estimator != "f_e")
    for name in needed:
        if getattr(privacy, name) is None:
            raise PrivacyError(
                f"{name} is not given; allowed: a public constant, or settings_from_corpus = true, as the sum over "
                "the corpus is private"
            )
    if privacy.user_weight_cap is not None:
        raise PrivacyError(
            f"user_weight_cap is {privacy.user_weight_cap:g}; allowed: nothing, or settings_from_corpus = true, "
            "because the sum of the users' weights is private"
        )


@dataclass(frozen=True, kw_only=True)
class Published(Mechanism):
    """Compute the paper's algorithm with its defaults, and account for it as user-level DP.

    Attributes:
        terms: estimator, weights and noise.
        sums_from_corpus: whether W_e or W_s was computed from the corpus; records omit it.
        local, server: how users train and the server steps; ε does not depend on it, so records of the mechanism omit
            it.
    """

    defaults: ClassVar = Mechanism.defaults | {"q_u": 0.05, "q_e": 0.5, "clip_norm": 0.1, "noise_multiplier": 2.0}
    Config = PublishedConfig
    fixed_at_one = ("user_cap",)
    needs_entities = True
    protects = "one user, and one entity as far as the figures below say; not what the paper claims"
    headline = AS_PUBLISHED

    strategy: str = "published"
    terms: PublishedTerms
    sums_from_corpus: bool = field(default=False, compare=False)
    local: LocalTrainingConfig = field(default_factory=LocalTrainingConfig, compare=False)
    server: ServerOptimizerConfig = field(default=STATED_STEP, compare=False)

    def check(self) -> None:
        super().check()
        noise = self.noise_per_clip
        require(0 < noise < math.inf, "noise_multiplier", self.noise_multiplier, "what gives a noise above 0")

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, object]:
        privacy = settings.privacy_as(PublishedConfig)
        from_corpus = privacy.entity_weights is None or privacy.extended_weights is None
        terms = PublishedTerms.of_corpus(settings)
        return {"terms": terms, "sums_from_corpus": from_corpus, "local": settings.local, "server": settings.server}

    @classmethod
    def unread(cls, strategy: str, local: LocalTrainingConfig) -> Iterator[UnreadSettings]:
        if local.update == "steps":
            yield "local", ("optimizer", "epochs"), f"{strategy} takes one pass of SGD"
        else:
            yield "local", LOCAL_STEPS, "users take one step with all their sentences"

    def client_rule(self, clip_norm: float) -> ClientRule:
        steps = {"batch_size", "learning_rate"} if self.local.update == "steps" else set[str]()
        return WeightedGradients(
            **self.bounds(clip_norm),
            **self.local.model_dump(include=steps),
            extended=self.terms.estimator == "f_e_plus",
            user_weight_cap=self.terms.user_cap,
            entity_weight_cap=self.terms.entity_cap,
            extended_weight_cap=self.terms.extended_cap,
        )

    @property
    def noise_per_clip(self) -> float:
        stated = paper_model.stated_noise(self.noise_multiplier, self.q_u * self.population)
        if self.terms.noise == "as-stated":
            return stated
        return paper_model.coded_noise(stated, self.clip_norm, self.denominator)

    @property
    def denominator(self) -> float:
        extended = self.q_s * self.terms.extended_weights if self.terms.estimator == "f_e_plus" else 0.0
        return paper_model.denominator(
            self.q_u * self.terms.user_weights, self.q_e, self.terms.entity_weights, extended
        )

    def event(self) -> RoundEvent:
        """Return the release of user-level DP, because q_e amplifies nothing (docs/privacy-proofs.md, section 3).

        A sentence that mentions the entity may be eligible through another one and change its user's whole update.
        """
        return RoundEvent("user_level", self.noise_per_clip, q_u=self.q_u)

    def exposed(self, adjacency: Adjacency) -> Adjacency:
        """Return the adjacency with an entity that all users mention, if weights depend on other users' data."""
        if not self.terms.weights_from_data:
            return adjacency
        return replace(adjacency, entity_bound=ContributionBound(users=self.population, sentences_per_user=1))

    def claim(self) -> PublishedSettings:
        """Return the settings of the training as the paper's accountant reads them."""
        return PublishedSettings(
            estimator=self.terms.estimator,
            users=self.population,
            users_per_round=self.expected_cohort,
            noise_multiplier=self.noise_multiplier,
            q_e=self.q_e,
            sentences=self.terms.sentences,
            sensitive_sentences=self.terms.sensitive_sentences,
        )

    def claims(self, rounds: int, delta: float) -> dict[str, Floats]:
        return {AS_PUBLISHED: paper_model.curve_as_published(self.claim(), range(rounds + 1), delta)}

    def describe(self) -> Description:
        z = f"noise multiplier z {self.noise_multiplier:.4g}"
        terms = f"{self.terms.estimator}, noise {self.terms.noise}"
        words = (*self.rates_in_words(), self.clips_in_words(), z, terms)
        return Description(protects=self.protects, settings=words, warnings=tuple(self._warnings()))

    def _warnings(self) -> list[str]:
        warnings = [
            f"{AS_PUBLISHED} is what the paper's accountant says of these settings. It is a claim and no guarantee "
            "(docs/privacy-proofs.md, section 3)."
        ]
        if self.terms.noise == "as-coded":
            stated = paper_model.stated_noise(self.noise_multiplier, self.expected_cohort)
            warnings.append(
                f"privacy.noise is as-coded: the noise is {self.noise_per_clip:.2g} of a user's clip where the paper "
                f"states {stated:.4g}, and gives no useful guarantee."
            )
        if self.server != STATED_STEP:
            warnings.append(
                "the server's step is not the paper's, which adds the noisy average (server.optimizer = sgd, "
                "server.learning_rate = 1)."
            )
        if self.sums_from_corpus:
            warnings.append(
                "W_e and W_s are the corpus's; the guarantee takes them as public (privacy.entity_weights, "
                "privacy.extended_weights)."
            )
        if self.terms.weights_from_data:
            warnings.append(
                "the weights depend on other users' data, so that every ε is that of an entity which all users mention."
            )
        return warnings

    def record(self) -> dict[str, object]:
        return super().record() | {"options": asdict(self.terms)}

    @classmethod
    def recorded_fields(cls, values: Mapping[str, Any]) -> dict[str, object]:
        terms = values.get("options")
        if not terms:
            raise PrivacyError(f"options is {terms}; allowed: the terms of the paper's algorithm")
        return super().recorded_fields({**values, "options": {}}) | {"terms": PublishedTerms(**terms)}
