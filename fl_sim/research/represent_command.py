"""Private text representations: encode, perturb, classify, attack; claimed and proven ε beside each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

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
    again = what.add_parser("reproduce", help="a published table", description="Reproduce a published table.")
    again.add_argument("name", metavar="NAME", help="adult, ag-study, dpnr-ag or words (docs/representations.md)")
    again.add_argument("--source", type=Path, required=True, metavar="DIR", help="the folder of the corpus")
    again.add_argument("--seeds", metavar="N,N,…", help="default 0 to 9")
    again.add_argument("--full", action="store_true", help="the paper's full grid")
    again.add_argument("--layer", default="l1", metavar="NAME", help="l1, the paper's; l2, the published code's")
    again.add_argument("--jobs", type=int, default=1, metavar="N", help="experiments at once, on Ray (default 1)")
    again.add_argument(
        "--work", type=Path, metavar="DIR", help="a folder for finished experiments; the same command resumes"
    )
    again.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write the table, JSON; its pictures beside it"
    )


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
    """Run the experiment or make the table; return exit code 0."""
    from fl_sim.cli.written_files import check_no_other

    for name in ("out", "picture"):
        check_no_other(f"--{name}", getattr(args, name, None))
    return {"run": _run_one, "words": _attack_words, "reproduce": _reproduce}[args.what](args)


def _attack_words(args: argparse.Namespace) -> int:
    import json

    from fl_sim.research.representations.studies.words.word_files import attack_files, summary
    from fl_sim.storage.run_folder import encode, replace_file

    record = attack_files(args)
    text = json.dumps(encode(record), indent=1, ensure_ascii=False)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(args.out, text.encode() + b"\n")
    print(text if args.json else summary(record))
    return 0


def _run_one(args: argparse.Namespace) -> int:
    import json
    import sys

    from fl_sim.config import merged, nested, parse_assignments, read_toml
    from fl_sim.research.representations import representation_experiment
    from fl_sim.research.representations.config import load_mapping
    from fl_sim.research.representations.evaluation.experiment_summary import summary
    from fl_sim.storage.run_folder import encode, replace_file

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
    text = json.dumps(encode(record), indent=2)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(args.out, text.encode() + b"\n")
    if args.picture is not None:
        _draw(config, args.picture)
    print(text if args.json else summary(record))
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


def _reproduce(args: argparse.Namespace) -> int:
    return make_table(
        args.name,
        source=args.source,
        seeds=args.seeds,
        full=args.full,
        layer=args.layer,
        jobs=args.jobs,
        work=args.work,
        out=args.out,
    )


def make_table(
    name: str,
    *,
    source: Path,
    seeds: str | None,
    full: bool,
    jobs: int,
    work: Path | None,
    out: Path | None,
    layer: str = "l1",
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Reproduce a published table, write it to ``out`` and print it; return exit code 0.

    Args:
        name: of the table.
        source: the folder of its corpus.
        seeds: separated by commas; None for the default.
        full: the paper's grid instead of the thin one.
        jobs: experiments at once, from 1 to 1024.
        work: a folder for finished experiments; None stores nothing.
        out: file of the table's JSON, with its pictures beside it; None writes none.
        layer: the privacy layer.
        as_json: print JSON instead of Markdown.
        quiet: print no progress.
    """
    import json
    import sys

    from fl_sim.config import ConfigError
    from fl_sim.research.representations.studies import reproductions
    from fl_sim.research.representations.studies.study_tables import Options
    from fl_sim.storage.run_folder import encode

    if not 1 <= jobs <= 1024:
        raise ConfigError(f"--jobs is {jobs}; allowed: an integer from 1 to 1024")
    numbers = [str(seed) for seed in range(reproductions.named(name).seeds)] if seeds is None else seeds.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise ConfigError(f"--seeds is {seeds!r}; allowed: integers of at least 0, separated by commas")
    options = Options(
        source=source.expanduser().absolute(),
        seeds=tuple(map(int, numbers)),
        full=full,
        layer=layer,
        jobs=jobs,
        work=None if work is None else work.expanduser().absolute(),
    )
    table = reproductions.run(name, options, lambda line: None if quiet else print(line, file=sys.stderr, flush=True))
    if out is not None:
        reproductions.write(table, out)
    print(json.dumps(encode(table), ensure_ascii=False) if as_json else reproductions.show(table), end="")
    return 0
