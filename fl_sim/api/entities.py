"""Compute ε of every entity of a corpus from its profile: the number of sentences of each user that mention it.

>>> entities = entities_of_corpus("bundled", split="validation", noise_multiplier=4.0, rounds=3, q_s=0.01)
>>> figures = entities.report()
>>> figures["entities"] > 0 and figures["epsilon_user_entity"]["max"] <= figures["epsilon_any"]
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.api.accounts import DELTA, Figures, round_event, settings_of
from fl_sim.api.runs import Run, folder_of
from fl_sim.config import ConfigError, RunConfig, parse_value
from fl_sim.data_prep.identity import NOBODY, entities_of_users, entity_of_name
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan import entity_report
from fl_sim.experiments.plan.entity_report import THRESHOLDS, Training
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.privacy_spent import read_ledgers
from fl_sim.experiments.run_inputs import check_text
from fl_sim.experiments.run_record import Record, recorded_bounds
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting.accountant import Strategy
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.guarantee import Known
from fl_sim.strategies.ledger import has_repeated_sums


@dataclass(frozen=True)
class Entities:
    """The entities of a corpus under the mechanism and the bounds of a training; all figures are for its owner.

    Attributes:
        corpus: The corpus.
        split: Its training split.
        training: The mechanism and the number of rounds.
        bounds: What the training enforces on users and entities.
        population: N.
    """

    corpus: Corpus
    split: str
    training: Training
    bounds: EnforcedBounds
    population: int

    def report(
        self,
        *,
        within: Sequence[float] = THRESHOLDS,
        show_names: bool = False,
        observer: Callable[[int, int], None] = lambda done, total: None,
    ) -> Figures:
        """Return the distribution of ε over the entities, with the worst of them.

        Args:
            within: Give the share of entities within this ε.
            show_names: Name the worst entities; the list is private.
            observer: Called with the number of ε that are computed, and that of all.

        Raises:
            ConfigError: ``within`` has no number.
        """
        if any(math.isnan(epsilon) for epsilon in within):
            raise ConfigError("within is nan; allowed: an ε")
        bounds, training = self.bounds, self.training
        epsilons = entity_report.bounded_entity_epsilons(bounds, training, self.population, observer)
        names = self.corpus.entities(self.split)["entity"].tolist() if show_names else None
        figures = self._settings() | bounds.record()
        figures["epsilon_any"] = entity_report.epsilon_of_any(bounds.guarantee, training, self.population)
        return figures | entity_report.summarise(epsilons, tuple(within) or THRESHOLDS, names)

    def pair(self, *, user: str | None = None, entity: str | None = None) -> Figures:
        """Return ε of one user and one entity, who may be the same person.

        Args:
            user: The name of the user; by default the user of the entity's name, if there is one.
            entity: The name of the entity; by default the entity of the user's name, if there is one.

        Raises:
            ConfigError: the split has no user or entity of that name.
        """
        user_id, entity_id, same = self._named(user, entity)
        pair = entity_report.pair_epsilons(self.bounds, self.training, user_id, entity_id)
        return {
            **self._settings(),
            **self.bounds.record(),
            "user": None if user_id is None else self.corpus.users(self.split)["user"][user_id],
            "entity": None if entity_id is None else self.corpus.entities(self.split)["entity"][entity_id],
            "entity_is_user": same,
            "entity_is_public": entity_id in self.bounds.declared.public,
            "user_sentences_kept": pair.user_sentences,
            "entity_sentences_kept": int(pair.profile.sum()),
            "entity_users_kept": len(pair.profile),
            "epsilon_user": pair.user,
            "epsilon_user_entity": None if entity_id is None else pair.detected,
            "epsilon_user_entity_robust": None if entity_id is None else pair.robust,
        }

    def _named(self, name_of_user: str | None, name_of_entity: str | None) -> tuple[int | None, int | None, bool]:
        """Return the ids of a user and an entity by name, None for none, and whether they are one person.

        Who is named as one of them is the other, too, if the corpus has both.
        """
        entity_of_user = entities_of_users(self.corpus, self.split).tolist()
        user = entity = None
        if name_of_user is not None:
            users = self.corpus.users(self.split)["user"].tolist()
            if name_of_user not in users:
                raise ConfigError(f"`user` is '{name_of_user}'; allowed: the name of a user of split {self.split}")
            user = users.index(name_of_user)
            entity = None if entity_of_user[user] == NOBODY else entity_of_user[user]
        if name_of_entity is not None:
            entity = entity_of_name(self.corpus, self.split, name_of_entity)
            if entity is None:
                raise ConfigError(
                    f"`entity` is '{name_of_entity}'; allowed: the name of an entity of split {self.split}"
                )
            if user is None and entity_of_user.count(entity) == 1:
                user = entity_of_user.index(entity)
        return user, entity, user is not None and entity is not None and entity_of_user[user] == entity

    def _settings(self) -> Figures:
        event = self.training.event
        return {
            "corpus": self.corpus.manifest.name,
            "split": self.split,
            "strategy": event.strategy,
            **settings_of(event),
            "rounds": self.training.rounds,
            "delta": self.training.delta,
            "user_sentences": self.training.user.user_sentences,
        }


def entities_of_corpus(
    corpus: str | Path,
    *,
    split: str = "train",
    strategy: Strategy = "uedp",
    noise_multiplier: float,
    rounds: int,
    delta: float = DELTA,
    user_sentences: str = "corpus",
    entity_bound: str = "unbounded",
    known: Known = "counts",
    **mechanism: Any,
) -> Entities:
    """Return the entities of a corpus under a mechanism, as ``fl-sim entities corpus`` reads them.

    Args:
        corpus: The corpus to read.
        split: The training split.
        strategy: The mechanism that trains: uedp, or user_level.
        noise_multiplier: The noise multiplier z: the standard deviation of the noise on the sum / the user clip.
        rounds: The number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        user_sentences: The bound m, as privacy.user_sentences; corpus is the largest of the corpus.
        entity_bound: The bound k, as privacy.entity_bound.
        known: What may be known, as privacy.known: counts or graph.
        mechanism: The other settings of a round, as for :func:`fl_sim.account`: q_u, q_e, q_s, user_cap and clipping.

    Raises:
        CorpusError: the folder is no prepared corpus.
        ConfigError, PrivacyError: a value is impossible.
    """
    event = round_event(strategy, noise_multiplier=noise_multiplier, **mechanism)
    opened = Corpus.open(corpus, verify=True)
    given = {"entity_bound": entity_bound, "user_sentences": user_sentences, "known": known}
    privacy = {f"privacy.{name}": parse_value(f"privacy.{name}", text) for name, text in given.items()}
    config = RunConfig.from_mapping(privacy | {"privacy.settings_from_corpus": True})
    bounds = EnforcedBounds.of(config.privacy, opened.ownership(split))
    training = Training(event, rounds, delta, bounds.guarantee.user)
    return Entities(opened, split, training, bounds, bounds.ownership.num_users)


def entities_of_run(run: Run | str | Path) -> Entities:
    """Return the entities of a run's corpus under its mechanism and its released rounds, as of ``fl-sim entities run``.

    Args:
        run: The run, open or as the path of its folder.

    Raises:
        ResultsError: there is no such folder, its corpus has changed, or no round has been released.
        CorpusError: nodes hold its text.
        ConfigError: its ε cannot be computed entity by entity.
        LedgerError: its ledger cannot be trusted.
    """
    folder = folder_of(run)
    record = Record.read(folder)
    config, corpus = record.config, record.open_corpus(folder)
    check_text(corpus)
    *ancestors, ledger = read_ledgers([folder.path])
    if not ledger.entries:
        raise ResultsError(f"{folder.path}: no round has been released; allowed: a run of at least one round")
    mechanism, *others = {entry.terms.mechanism for entry in ledger.entries}
    event = mechanism.event()
    if event is None:
        raise ConfigError(
            f"{folder.path}: {mechanism.strategy} guarantees nothing; allowed: runs of a strategy with an ε"
        )
    if mechanism.exposed(Adjacency()) != Adjacency():
        raise ConfigError(
            f"{folder.path}: its weights depend on other users' data, so an entity affects the updates of all users; "
            "allowed: runs without privacy.*_weight_cap"
        )
    if ancestors:
        raise ConfigError(
            f"{folder.path}: starts from a trained model, whose releases are not counted entity by entity; "
            "allowed: a run from a public model"
        )
    if others or has_repeated_sums(ledger.entries):
        raise ConfigError(
            f"{folder.path}: a round was released with {'other settings' if others else 'several sums'}; allowed: runs "
            "of one sum a round (fl-sim account counts all of them)"
        )
    bounds = recorded_bounds(folder, record, corpus, ledger)
    # A round repeated after a crash, with fresh noise, is another release; the ledger has all of them.
    training = Training(event, len(ledger.entries), config.privacy.delta, bounds.guarantee.user)
    return Entities(corpus, config.corpus.train_split, training, bounds, mechanism.population)
