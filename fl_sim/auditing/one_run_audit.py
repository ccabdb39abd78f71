"""Audit a single real training with planted canary users (one-run auditing; Steinke, Nasr, Jagielski 2023).

Every canary is a user of its own with one sentence of random words, included in the corpus independently with
probability ½. The training is an ordinary run on the inline engine: real model, gradients, clips, sampling and noise.
The attacker observes the model after every round and scores each canary by the alignment of the rounds' steps
with the client update of this canary. Many correct guesses in one run bound ε for a user from below.

The bound is far weaker than that of the worst-case corpora, because one run gives few guesses, but it covers everything
between text and model.

>>> result = OneRunAudit(
...     epsilon_proven=5.0, epsilon_lower=1.0, confidence=0.95, included=np.array([True, False]),
...     scores=np.array([2.0, -1.0]), rounds=20, delta=1e-5,
... )
>>> result.record()["attack_auc"], result.record()["holds"]
(1.0, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_sim.auditing.lower_bounds import Bools, Floats, check_confidence, f_dp_epsilon
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.models.language_model import load_model
from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of_split
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.engines.engine import Engine
from fl_sim.experiments.experiment import Experiment
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.primitives import clipping, streams

_TRAIN, _HELD_OUT = "train", "validation"
_CANARY_WORDS = 8
_BYSTANDERS = 20  # users of the base corpus who train with the canaries
_HELD_OUT_SENTENCES = 20


@dataclass(frozen=True, slots=True)
class Planted:
    """Hold a corpus with canaries.

    Attributes:
        texts: the sentence of each of the m canaries, included or not.
        included: whether each canary is in the corpus, bool (m,).
        population: N, which no canary decides.
    """

    path: Path
    texts: tuple[str, ...]
    included: Bools
    population: int


@dataclass(frozen=True, slots=True)
class OneRunAudit:
    """Hold the result of a one-run audit.

    Attributes:
        epsilon_proven: ε of our accountant for a user with one sentence after the rounds that ran.
        epsilon_lower: the lower bound from the canaries.
        included: whether each canary was in the corpus, bool (m,).
        scores: the attack's score of each canary, float64 (m,).
    """

    epsilon_proven: float
    epsilon_lower: float
    confidence: float
    included: Bools
    scores: Floats
    rounds: int
    delta: float

    @property
    def holds(self) -> bool:
        """Tell whether the canaries do not refute the ε of our accountant."""
        return self.epsilon_lower <= self.epsilon_proven

    def record(self) -> dict[str, str | float | None]:
        """Return the result as one JSON object."""
        above = self.scores[self.included][:, None] > self.scores[~self.included][None, :]
        return {
            "canaries": len(self.scores),
            "canaries_included": int(self.included.sum()),
            "rounds": self.rounds,
            "delta": self.delta,
            "epsilon_proven": self.epsilon_proven if math.isfinite(self.epsilon_proven) else "inf",
            "epsilon_lower": self.epsilon_lower,
            "confidence": self.confidence,
            "attack_auc": float(above.mean()) if above.size else None,
            "holds": self.holds,
        }


def audit_training(
    work: Path,
    *,
    canaries: int,
    seed: int,
    confidence: float,
    overrides: Mapping[str, str | float] | None = None,
) -> OneRunAudit:
    """Plant canaries in a corpus, train on it, and bound ε from the attack's guesses.

    Args:
        work: an existing folder for the corpus and the run.
        canaries: m, the number of canaries, at least 2; each is included with probability ½.
        seed: seed of the canaries, of their inclusion, of the model and of the training.
        confidence: confidence of the lower bound.
        overrides: settings of the run, by ``section.key``.

    Raises:
        PrivacyError: if ``canaries`` is below 2, or ``confidence`` outside (0, 1).
    """
    if canaries < 2:
        raise PrivacyError(f"canaries is {canaries}; allowed: an integer of at least 2")
    check_confidence(confidence)
    planted = plant(Corpus.open("bundled"), canaries, seed, work / "corpus")
    settings = _DEFAULTS | {"privacy.population": planted.population} | dict(overrides or {})
    settings |= {"corpus.path": str(planted.path), "out": str(work / "run"), "seed": seed}
    with Engine() as engine:
        experiment = Experiment.create(RunConfig.from_mapping(settings), engine.start)
        plan = experiment.planned.plan
        attacker = Attacker(experiment, planted.texts)
        folder = simulation.execute(experiment, engine, attacker.watch)
    rounds = folder.last_round or 0
    proven = float(plan.epsilon_curve(Adjacency(1), [rounds])[0])
    lower = f_dp_epsilon(planted.included, attacker.alignment, plan.delta, confidence)
    return OneRunAudit(proven, lower, confidence, planted.included, attacker.alignment, rounds, plan.delta)


# A training that leaks as much as its ε allows: every user takes part in every round, and a canary fills the cap.
_DEFAULTS: dict[str, str | float] = {
    "rounds": 20,
    "checkpoint_every": 1,  # the attacker reads every round's model
    "model.hidden": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.max_tokens": 32,
    "privacy.strategy": "uedp",
    "privacy.q_u": 1.0,
    "privacy.q_e": 1.0,
    "privacy.q_s": 1.0,
    "privacy.user_cap": 1.0,
    "privacy.clip_norm": 1.0,
    "privacy.noise_multiplier": 1.0,
    "evaluation.every": 1_000_000,
    "engine.name": "inline",
}


def plant(base: Corpus, canaries: int, seed: int, out: Path) -> Planted:
    """Write a corpus of a few users of ``base`` and of canaries in its words, each included with probability ½."""
    rng = streams.generator(seed, "audit canaries")
    words = sorted({word for text in base.texts(_TRAIN)[:500].to_pylist() for word in text.split() if word.isalpha()})
    texts = tuple(" ".join(rng.choice(words, _CANARY_WORDS)) for _ in range(canaries))
    included = rng.random(canaries) < 0.5
    included_sentences = [Sentence(_TRAIN, f"canary-{i}", texts[i], ()) for i in np.flatnonzero(included)]
    bystanders = base.ownership(_TRAIN).user_offsets[_BYSTANDERS]
    sentences = [*_sentences(base, _TRAIN, int(bystanders)), *included_sentences]
    held_out = _sentences(base, base.held_out_split, _HELD_OUT_SENTENCES)
    corpus = write_corpus([*sentences, *held_out], out, name="canaries")
    return Planted(corpus.path, texts, included, corpus.ownership(_TRAIN).num_users + int((~included).sum()))


def _sentences(corpus: Corpus, split: str, count: int) -> Iterator[Sentence]:
    """Yield the first ``count`` sentences of a split, as they were prepared."""
    owners = corpus.ownership(split).user_of_sentence
    written = _TRAIN if split == _TRAIN else _HELD_OUT
    for owner, sentence in zip(owners[:count].tolist(), sentences_of_split(corpus, split), strict=False):
        yield Sentence(written, f"user-{owner}", sentence.text, sentence.mentions)


class Attacker:
    """Observe the model after every round, from the run's checkpoints, and score the canaries.

    Args:
        experiment: the training, whose initial model the attacker knows.
        texts: the m canaries.

    Attributes:
        alignment: the score of each canary i, high if it took part, float64 (m,):
            Σ_t ⟨θ_t − θ_{t−1}, v_i(θ_{t−1})⟩, with v_i centred over the canaries.
    """

    def __init__(self, experiment: Experiment, texts: tuple[str, ...]) -> None:
        self._experiment = experiment
        self._model = load_model(experiment.config.model, experiment.config.seed)
        self._canaries = self._model.encode(texts)
        self._before = self._model.get_vector()  # of the previous round, float32 (d,)
        self.alignment: Floats = np.zeros(len(texts))

    def watch(self, row: Mapping[str, object]) -> None:
        """Observe a round that has just been released, from its row of metrics."""
        if row["round"] == 0:
            return
        checkpoint = Checkpoint.read(self._experiment.folder.checkpoint_dir)
        if checkpoint is None or checkpoint.server_round != row["round"]:
            raise PrivacyError("checkpoint_every is not 1; allowed in an audit: 1, it reads every round's model")
        self._model.set_vector(self._before)
        mechanism = self._experiment.planned.plan.mechanism
        rule = mechanism.client_rule(mechanism.clip_norm)
        rows = []  # v_i: what each canary would send at the model before the round
        for canary in self._canaries:
            vector = clipped_gradient_sum(self._model, [canary], rule.sentence_clip, stability=rule.stability).vector
            clipping.project(vector, rule.user_clip)
            rows.append(vector)
        updates = np.asarray(rows, dtype=np.float64)
        step = (checkpoint.vector - self._before).astype(np.float64)
        self.alignment += (updates - updates.mean(axis=0)) @ step
        self._before = checkpoint.vector
