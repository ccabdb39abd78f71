"""``fl-sim corpus``: count, compare and de-identify a corpus, weigh names, train or evaluate on public text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fl_sim.api import corpora, initial_models
from fl_sim.cli.flags import print_json
from fl_sim.cli.from_signature import CORPUS, options_of
from fl_sim.cli.progress_bar import Show, counting
from fl_sim.cli.verbs import VerbGroup, as_json, quiet
from fl_sim.data_prep.corpus_stats import CONTRIBUTIONS_ARE_PRIVATE, identity_effect, identity_table, stats_table
from fl_sim.data_prep.declared_counts import write_counts
from fl_sim.data_prep.deidentify import deidentify as without_entities
from fl_sim.data_prep.public_names import write_public_weights
from fl_sim.data_prep.store.corpus import Corpus

if TYPE_CHECKING:
    from fl_sim.data_prep.records import Sentence
    from fl_sim.data_prep.tagger_evaluation import Evaluation
    from fl_sim.data_prep.tagger_scores import Estimate

_SENTENCES_PER_TICK = 200
_HIDING_WORDS = {
    "sensitive_sentences": "sentences with an entity that are flagged",
    "mentions_hidden": "mentions under a flagged one",
    "mentions_with_coin": "mentions sampled with their entity",
    "entities_covered": "entities sampled with all their sentences",
}


@click.group(cls=VerbGroup)
def corpus() -> None:
    """Count, compare and de-identify a prepared corpus, weigh names, train or evaluate on public text."""


@corpus.command()
@click.argument("corpus", type=CORPUS, metavar="CORPUS")
@click.option("--verify", is_flag=True, help="Check the checksum of every file first.")
@as_json
def stats(corpus: str, verify: bool, as_json: bool) -> None:
    """Count users, sentences and entities of a corpus, and the contribution bounds of its entities."""
    from rich.console import Console

    from fl_sim.data_prep.readers.cleaning import Note
    from fl_sim.formats import table_cell

    opened = corpora.open_corpus(corpus, verify=verify)
    figures = corpora.corpus_stats(opened)
    if as_json:
        print_json(figures)
        return
    console = Console()
    console.print(stats_table(figures))
    for name, times in figures["bad_text"].items():
        console.print(f"survived: {times:,} {Note(name).meaning}")
    if figures["canaries"]:
        console.print(_canaries_in_words(figures["canaries"]), highlight=False)
    if figures["not_looked_for"]:
        console.print(f"nobody looked for: {', '.join(map(table_cell, figures['not_looked_for']))}")


def _canaries_in_words(counts: dict[str, int]) -> str:
    return (
        f"canaries: {counts['included']:,} of {counts['number']:,} are included, with {counts['users']:,} users of "
        f"which {counts['users_left_out']:,} are left out; for a training on them: "
        f"--set privacy.population={counts['population']} (docs/audit.md)"
    )


@corpus.command()
@options_of(identity_effect)
@as_json
def identity(corpus: str, split: str, as_json: bool) -> None:
    """Compare entities and their contribution bounds by identity setting."""
    from rich.console import Console

    opened = corpora.open_corpus(corpus)
    rows = identity_effect(opened, split)
    name = opened.manifest.name
    if as_json:
        print_json({"corpus": name, "split": split, "rows": rows, "note": CONTRIBUTIONS_ARE_PRIVATE})
    else:
        Console().print(identity_table(name, split, rows))


@corpus.command()
@options_of(without_entities)
@as_json
def deidentify(corpus: str, as_json: bool, **settings: Any) -> None:
    """Make a corpus without its entities: replace them by their category, or remove them."""
    made, tally = without_entities(Corpus.open(corpus, verify=True), **settings)
    if as_json:
        figures = {"corpus": made.path, "fingerprint": made.fingerprint, **dataclasses.asdict(tally)}
        print_json(figures | {"warnings": made.warnings})
        return
    changed = f"{tally.changed:,} of {tally.sentences:,} sentences"
    print(f"{tally.mentions:,} mentions at {tally.replaced:,} places, in {changed}")
    print(f"{tally.emptied:,} sentences had no other text and are kept as one placeholder")
    print(
        f"{tally.still_there:,} sentences contain the spelling of a mention where no mention was marked "
        f"({tally.names_still_there:,} names): probably missed"
    )
    for warning in made.warnings:
        print(f"warning: {warning}")
    print(f"made {made.path}; next: fl-sim run --corpus {made.path} --strategy noiseless")


@corpus.command()
@options_of(write_counts)
def counts(corpus: str, out: Path, **settings: Any) -> None:
    """Write the declared counts of users and entities, which may be larger than those of the corpus trained on."""
    write_counts(Corpus.open(corpus, verify=True), out, **settings)
    print(f"wrote {out}; it names users and entities; next: fl-sim run --set privacy.counts={out}")


@corpus.command()
@options_of(write_public_weights)
@as_json
def weights(corpus: str, out: Path, as_json: bool, **settings: Any) -> None:
    """Write weights of names, by which names that are frequent in public text weigh less in a private corpus."""
    public = corpora.open_corpus(corpus)
    number = write_public_weights(public, out=out, **settings)
    if as_json:
        print_json({"weights": number, "fingerprint": public.fingerprint, "out": out})
    else:
        print(f"{number:,} names have a weight below 1; wrote {out}")
        print("these weights are public only if the corpus is: nothing of it may come from the private corpus")


@corpus.command()
@options_of(initial_models.pretrain, but=("observer",))
@as_json
@quiet
def pretrain(out: Path, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Train a small GPT-2 or AWD-LSTM on public text, as the initial model of private runs."""
    with counting("training", quiet) as show:
        record = initial_models.pretrain(
            out=out,
            observer=lambda step, steps, loss: show(step, steps, f"{step:,} of {steps:,} steps, loss {loss:.2f}"),
            **settings,
        )
    if as_json:
        print_json({"folder": out, **record})
    else:
        print(f"held-out perplexity {record['perplexity']:.1f}; the model is in {out}")


@corpus.command()
@click.argument("tagger")
@options_of(corpora.evaluate_tagger, but=("tagger", "watch"))
@as_json
@quiet
def ner(as_json: bool, quiet: bool, **settings: Any) -> None:
    """Measure a tagger against gold entities: precision, recall and hidden entities, with intervals."""
    with counting("sentences tagged", quiet) as show:
        evaluation = corpora.evaluate_tagger(watch=lambda sentences: _watched(sentences, show), **settings)
    print(evaluation.model_dump_json() if as_json else _table(evaluation))


def _watched(sentences: Iterable[Sentence], show: Show) -> Iterator[Sentence]:
    """Pass sentences on and show how many there were."""
    for count, sentence in enumerate(sentences, start=1):
        if count % _SENTENCES_PER_TICK == 0:
            show(count, None)
        yield sentence


def _table(evaluation: Evaluation) -> str:
    gold = evaluation.gold
    lines = [
        f"{evaluation.tagger.get('tagger', 'unknown')} on {gold.name}, {gold.split}: {gold.sentences:,} sentences, "
        f"{gold.sensitive_sentences:,} with an entity, {gold.mentions:,} mentions of {gold.entities:,} entities, "
        f"{gold.clusters:,} users or documents",
        "",
        f"{'What is hidden (95 % interval)':<52}",
        *(f"  {words:<50}{_interval(evaluation.hiding[name])}" for name, words in _HIDING_WORDS.items()),
        f"  {'all sentences that are flagged':<50}{_number(evaluation.flagged)}",
        f"  {'flagged sentences that have an entity':<50}{_interval(evaluation.flag_precision)}",
        "",
        f"{'What the tagger finds':<30}{'precision':>22}{'recall':>22}{'F1':>22}",
    ]
    for match, kinds in evaluation.matching.items():
        for kind, figures in kinds.items():
            cells = "".join(f"{_interval(figures[name]):>22}" for name in ("precision", "recall", "f1"))
            lines.append(f"  {match.replace('_', ' ') + ', ' + kind:<28}{cells}")
    if evaluation.outside_scheme:
        lines.append(f"  (left out: {evaluation.outside_scheme:,} mentions of kinds that this corpus does not mark)")
    return "\n".join(lines)


def _interval(figure: Estimate) -> str:
    if figure.low is None or figure.high is None:
        return _number(figure.value)
    return f"{_number(figure.value)} ({figure.low:.3f}–{figure.high:.3f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
