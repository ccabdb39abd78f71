"""Words recovered from captured Word2Vec vectors, over widths, initial vectors, privacy layers and seeds.

User and attacker train Word2Vec on their own texts. The attacker looks up every captured vector among its own; if the
user's vectors passed a privacy layer, the attacker normalises its own as the layer does. ε is of one word's vector: a
sentence of w words sends w of them.

>>> attack = WordAttack(widths=(8,), layer="l1", epsilons=(2.0,))
>>> [(setting.initial, setting.epsilon) for setting in attack.settings()]
[('word', None), ('rank', None), ('different', None), ('word', 2.0)]
>>> left, right = part_texts(["a", "b", "c", "d"], "halves", seed=0)
>>> sorted(left + right)
['a', 'b', 'c', 'd']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fl_sim.config import ConfigError
from fl_sim.formats import format_epsilon
from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.research.representations.client.local_privacy import LayerName, build_mechanism
from fl_sim.research.representations.corpora.labelled import shuffled
from fl_sim.research.representations.evaluation.word_attack import WordVectors, recover_words, train_word_vectors
from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import estimate
from fl_sim.research.representations.studies.study_tables import spread
from fl_sim.strategies.primitives import streams

Texts = Sequence[str]
PartName = Literal["halves", "samples"]
PARTS = get_args(PartName)
"""Texts of the parties, from one corpus: disjoint halves, or two draws of half the texts, which overlap."""
InitialName = Literal["word", "rank", "different"]
SHARES = ("known", "first", "nearest")
_MOST_WIDTH = 1000


class Setting(NamedTuple):
    """A condition of the attack.

    Attributes:
        width: numbers per vector.
        initial: how initial vectors are drawn: from one seed and the ``word`` (gensim until 3.8, the study's), from one
            seed and the word's ``rank`` (gensim 4), or by rank from ``different`` seeds.
        layer: of the user's vectors.
        epsilon: the layer's parameter.
    """

    width: int
    initial: InitialName
    layer: LayerName
    epsilon: float | None


@dataclass(frozen=True)
class WordAttack:
    """Conditions to measure; perturbed vectors are attacked with initial vectors by word, the strongest attack.

    Attributes:
        widths: numbers per vector.
        layer: of the user's vectors where ``epsilons`` are given.
        epsilons: the layer's parameters.
        least: occurrences that a word needs.
        epochs: of Word2Vec.
    """

    widths: tuple[int, ...] = (100,)
    layer: LayerName = "none"
    epsilons: tuple[float, ...] = ()
    least: int = 5
    epochs: int = 5

    def __post_init__(self) -> None:
        if bad := [width for width in self.widths if not 1 <= width <= _MOST_WIDTH]:
            raise ConfigError(f"width is {bad[0]}; allowed: an integer from 1 to {_MOST_WIDTH}")
        if min(self.least, self.epochs) < 1:
            raise ConfigError(f"least is {self.least} and epochs {self.epochs}; allowed: at least 1")
        if (self.layer == "none") != (not self.epsilons):
            raise ConfigError(f"layer is {self.layer!r} with {len(self.epsilons)} ε; allowed: both or neither")
        for width in self.widths:
            for epsilon in self.epsilons:
                build_mechanism(self.layer, width, epsilon)  # refuses an ε before anything is trained

    def settings(self) -> Iterator[Setting]:
        """Yield all conditions."""
        for width in self.widths:
            for initial in get_args(InitialName):
                yield Setting(width, initial, "none", None)
            for epsilon in self.epsilons:
                yield Setting(width, "word", self.layer, epsilon)


def part_texts(texts: Texts, parts: PartName, seed: int) -> tuple[list[str], list[str]]:
    """Return the user's and the attacker's texts of one corpus, half of it each."""
    size = len(texts) // 2
    first = shuffled(len(texts), seed, "words user")
    second = first[size:] if parts == "halves" else shuffled(len(texts), seed, "words attacker")[:size]
    return [texts[i] for i in first[:size]], [texts[i] for i in second]


def attack_words(user: Texts, attacker: Texts, attack: WordAttack, seed: int) -> list[dict[str, Any]]:
    """Return a row of shares for each condition of one seed.

    Raises:
        ConfigError: a party's texts have no word that is frequent enough.
    """
    rows = []
    for width in attack.widths:
        by_word, by_rank = (_train("user", user, attack, width, seed, by_word=how) for how in (True, False))
        apart = short_seed(seed, "words of the attacker", bits=31)
        models = {
            "word": (by_word, _train("attacker", attacker, attack, width, seed, by_word=True)),
            "rank": (by_rank, _train("attacker", attacker, attack, width, seed, by_word=False)),
            "different": (by_rank, _train("attacker", attacker, attack, width, apart, by_word=False)),
        }
        for setting in (setting for setting in attack.settings() if setting.width == width):
            rows.append(_measure(*models[setting.initial], setting, seed))
    return rows


def _train(party: str, texts: Texts, attack: WordAttack, width: int, seed: int, *, by_word: bool) -> WordVectors:
    try:
        model = train_word_vectors(texts, seed, width=width, least=attack.least, epochs=attack.epochs, by_word=by_word)
    except ImportError as error:
        raise ConfigError("gensim is not installed; pip install 'fl-sim[representations]'") from error
    except RuntimeError as error:  # gensim's only message for an empty vocabulary
        raise ConfigError(f"the {party}'s texts have no word that occurs {attack.least} times; see least") from error
    return model


def _measure(user: WordVectors, attacker: WordVectors, setting: Setting, seed: int) -> dict[str, Any]:
    mechanism = build_mechanism(setting.layer, setting.width, setting.epsilon)
    row = {**setting._asdict(), "seed": seed, "epsilon_proven": math.inf, "epsilon_claimed": math.inf}
    if mechanism is not None:
        generator = streams.generator(seed, "release of words", round(1e6 * mechanism.epsilon))
        sent = mechanism.release(user.vectors.astype(np.float64), generator)
        user = WordVectors(user.words, sent.astype(np.float32))
        own = mechanism.normalise(attacker.vectors.astype(np.float64))
        attacker = WordVectors(attacker.words, own.astype(np.float32))
        guarantee = mechanism.guarantee()
        row |= {"epsilon_proven": guarantee.any_text, "epsilon_claimed": guarantee.claimed}
    return row | asdict(recover_words(user, attacker))


def over_seeds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each condition: the shares in percent over the seeds, with their intervals."""
    conditions = list(dict.fromkeys(Setting(*(row[name] for name in Setting._fields)) for row in rows))
    return [_over_seeds(setting, rows) for setting in conditions]


def _over_seeds(setting: Setting, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    of_all = [row for row in rows if Setting(*(row[name] for name in Setting._fields)) == setting]
    summary = {**setting._asdict(), **{name: of_all[0][name] for name in ("epsilon_proven", "epsilon_claimed")}}
    for share in SHARES:
        errors = [100 * share_error(row[share], row["words"]) for row in of_all]
        summary[share] = estimate([100 * row[share] for row in of_all], errors)
    return summary | {"words": [row["words"] for row in of_all]}


def markdown_table(rows: Sequence[dict[str, Any]], seeds: int) -> list[str]:
    """Return lines of Markdown: a row for each condition, proven ε of a word's vector first."""
    lines = [
        "| ε proven | ε claimed | layer | width | initial vectors | known | first | among 5 nearest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [format_epsilon(row["epsilon_proven"]), format_epsilon(row["epsilon_claimed"])]
        cells += [row["layer"], str(row["width"]), row["initial"]]
        cells += [spread(row[share], seeds, 2) for share in SHARES]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


Watch = Callable[[str], None]


def attack_over_seeds(
    texts: Callable[[int], tuple[Texts, Texts]], attack: WordAttack, seeds: Sequence[int], log: Watch
) -> list[dict[str, Any]]:
    """Return the rows of all seeds.

    Args:
        texts: the user's and the attacker's, of a seed.
        attack: the conditions.
        seeds: at least one.
        log: called with a line of progress.
    """
    rows = []
    for seed in seeds:
        rows += attack_words(*texts(seed), attack, seed)
        log(f"seed {seed}: {rows[-1]['words']:,} words attacked")
    return rows
