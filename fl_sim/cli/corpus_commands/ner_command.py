"""Evaluate a tagger against a gold corpus."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim ner``."""
    verbs = parser.add_subparsers(dest="ner_verb", metavar="VERB", required=True)
    evaluate = verbs.add_parser("evaluate", help="measure precision, recall and hidden entities, with intervals")
    evaluate.add_argument("tagger", metavar="TAGGER", help="as in fl-sim prepare: rules, spacy:PATH, a+b, or default")
    evaluate.add_argument(
        "--gold", required=True, metavar="CORPUS", help="a prepared corpus, bundled, irc, or tagged files"
    )
    evaluate.add_argument("--split", help="default: test, else validation; all of tagged files that name no split")
    evaluate.add_argument("--high-recall", action="store_true", help="add rules and patterns to the tagger")
    evaluate.add_argument(
        "--no-structured", dest="structured", action="store_false", help="without structured data, as in fl-sim prepare"
    )
    evaluate.add_argument("--entities", default="all", help="sensitive kinds, as in fl-sim prepare (default: all)")
    evaluate.add_argument("--resamples", type=int, default=1000, help="resamples of the bootstrap (default 1000)")
    evaluate.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    evaluate.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    evaluate.add_argument(
        "--attach", type=Path, metavar="DIR", help="add the figures to a corpus that this tagger marked"
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Evaluate a tagger; return the exit code 0."""
    from fl_sim.data_prep.tagger_evaluation import attach, check_attachable, check_writable, evaluate, gold_corpus
    from fl_sim.data_prep.taggers.categories import Selection
    from fl_sim.data_prep.taggers.tagger_registry import default_tagger, make_tagger, with_high_recall

    if args.out is not None:
        check_writable(args.out)
    names: str | tuple[str, ...] = default_tagger() if args.tagger == "default" else args.tagger
    if args.high_recall:
        names = with_high_recall(names)
    selection = Selection.parse(args.entities)
    tagger = make_tagger(names, selection=selection, structured=args.structured)
    gold = gold_corpus(args.gold, args.split)
    if args.attach is not None:
        check_attachable(tagger.describe(), args.attach)
    with _progress() as watch:
        evaluation = evaluate(tagger, gold, selection=selection, resamples=args.resamples, seed=args.seed, watch=watch)
    if args.out is not None:
        evaluation.write(args.out)
    if args.attach is not None:
        attach(evaluation, args.attach)
    print(evaluation.model_dump_json() if args.json else _table(evaluation))
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[Iterable[Sentence]], Iterator[Sentence]]]:
    """Yield a function that passes sentences on and counts them on stderr."""
    from fl_sim.cli.progress_bar import counting

    with counting("sentences tagged") as show:

        def watch(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            for count, sentence in enumerate(sentences, start=1):
                if count % _SENTENCES_PER_TICK == 0:
                    show(count, None)
                yield sentence

        yield watch


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
