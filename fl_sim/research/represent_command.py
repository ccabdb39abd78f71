"""Private text representations: encode, perturb, classify, attack; claimed and proven ε beside each other.

`fl-sim reproduce` makes the published tables of such systems.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.cli.corpus_flags import add_text_cleaning
from fl_sim.files import owner_only

if TYPE_CHECKING:
    from fl_sim.research.representations.config import ExperimentConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim represent``."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    run_one = what.add_parser("run", help="one system on one corpus", description="Train and attack one system.")
    run_one.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a TOML file (docs/representations.md)")
    run_one.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="any key of the configuration"
    )
    run_one.add_argument("--out", type=Path, metavar="FILE", help="where to write the record, JSON")
    run_one.add_argument("--picture", type=Path, metavar="FILE", help="draw the test texts by t-SNE as a PNG or SVG")
    run_one.add_argument("--json", action="store_true", help="print the record instead of a summary")
    _add_words(what)


def _add_words(what: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = what.add_parser(
        "words", help="the attack on word vectors", description="Recover words from captured Word2Vec vectors."
    )
    words.add_argument("user", type=Path, metavar="USER", help="the user's texts: .csv, .tsv, .jsonl or .parquet")
    words.add_argument(
        "attacker", nargs="?", type=Path, metavar="ATTACKER", help="the attacker's texts; default: a part of USER"
    )
    words.add_argument("--text", default="text", metavar="COLUMN", help="column with the text (default text)")
    words.add_argument(
        "--parts", default="halves", metavar="NAME",
        help="of USER: disjoint halves (default), or samples, two draws of half of it, which overlap",
    )  # fmt: skip
    words.add_argument("--widths", default="100", metavar="N,N,…", help="numbers per vector (default 100)")
    words.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9", metavar="N,N,…", help="default 0 to 9")
    words.add_argument("--layer", default="none", metavar="NAME", help="of the user's vectors: none, dpnr, l1 or l2")
    words.add_argument("--epsilons", metavar="ε,ε,…", help="of the layer, for one word's vector")
    words.add_argument("--least", type=int, default=5, metavar="N", help="occurrences that a word needs (default 5)")
    words.add_argument("--epochs", type=int, default=5, metavar="N", help="of Word2Vec (default 5)")
    add_text_cleaning(words)
    words.add_argument("--out", type=Path, metavar="FILE", help="where to write the record, JSON")
    words.add_argument("--json", action="store_true", help="print the record instead of a summary")


@owner_only()
def run(args: argparse.Namespace) -> int:
    """Run the experiment or the attack on words; return exit code 0."""
    from fl_sim.cli.written_files import check_no_other

    for name in ("out", "picture"):
        check_no_other(f"--{name}", getattr(args, name, None))
    return {"run": _run_one, "words": _attack_words}[args.what](args)


def _attack_words(args: argparse.Namespace) -> int:
    from fl_sim.research.representations.studies.words_study import attack_files, summary

    record = attack_files(args)
    _print(args, record, summary(record))
    return 0


def _print(args: argparse.Namespace, record: dict[str, Any], summary: str) -> None:
    """Write the record to the file that was named, and print it or its summary."""
    import json

    from fl_sim.research.study_files import write_json
    from fl_sim.storage.run_folder import encode

    if args.out is not None:
        write_json(record, args.out)
    print(json.dumps(encode(record), indent=1, ensure_ascii=False) if args.json else summary)


def _run_one(args: argparse.Namespace) -> int:
    import sys

    from fl_sim.config import merged, nested, parse_assignments, read_toml
    from fl_sim.research.representations import representation_experiment
    from fl_sim.research.representations.config import load_mapping
    from fl_sim.research.representations.evaluation.experiment_summary import summary

    settings = parse_assignments(args.settings)
    of_file = {} if args.config is None else nested(read_toml(args.config))
    config = load_mapping(merged(of_file, nested(settings)))  # a file need not be complete by itself
    record = representation_experiment.run(
        config,
        lambda row: print(
            f"epoch {row.epoch}: loss {row.loss:.4f}, validation accuracy {row.accuracy:.4f}", file=sys.stderr
        ),
        environment=representation_experiment.describe_environment(),
    )
    if args.picture is not None:
        _draw(config, args.picture)
    _print(args, record, summary(record))
    return 0


def _draw(config: ExperimentConfig, path: Path) -> None:
    """Draw the test texts' released vectors by t-SNE."""
    from fl_sim.config import ConfigError
    from fl_sim.formats import format_epsilon
    from fl_sim.research.representations.client.client_workspace import open_data
    from fl_sim.research.representations.evaluation.representation_pictures import draw_tsne, group_names
    from fl_sim.research.representations.representation_experiment import train_and_release

    data = open_data(config.data, config.seed)
    if not data.attributes:
        raise ConfigError(f"--picture: {data.name} has no private attribute; allowed: data with one")
    if not config.system.trains:
        raise ConfigError(f"--picture: method {config.method!r} sends nothing; allowed: a method with an encoder")
    path.parent.mkdir(parents=True, exist_ok=True)
    sent = train_and_release(config).released["test"]
    mechanism = config.mechanism(sent.shape[1])
    title = f"{config.method}, ε = {'∞' if mechanism is None else format_epsilon(mechanism.proven_epsilon)} proven"
    draw_tsne({title: sent}, data.test.private[:, 0], group_names(data.attributes[0]), path, config.seed)
