"""Private text representations: encode, perturb, classify, attack; ε as claimed and as proven beside each other."""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "represent"
HELP = "train a classifier on perturbed representations and attack them, or make a published table again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fl-sim represent``."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    run_one = what.add_parser("run", help="one system on one corpus", description="Train and attack one system.")
    run_one.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a TOML file (docs/representations.md)")
    run_one.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="any key of the configuration"
    )
    run_one.add_argument("--out", type=Path, metavar="FILE", help="where to write the record, JSON")
    run_one.add_argument("--picture", type=Path, metavar="FILE", help="draw the test texts by t-SNE as a PNG or SVG")
    run_one.add_argument("--json", action="store_true", help="print the record instead of a summary")
    again = what.add_parser("reproduce", help="a published table", description="Make a published table again.")
    again.add_argument("name", metavar="NAME", help="adult: FEDERATE's table 3")
    again.add_argument("--source", type=Path, required=True, metavar="DIR", help="the folder of the corpus")
    again.add_argument("--seeds", default="0,1,2,3,4", metavar="N,N,…", help="default 0,1,2,3,4")
    again.add_argument("--full", action="store_true", help="the paper's whole grid")
    again.add_argument("--layer", default="l1", metavar="NAME", help="l1, the paper's; l2, the published code's")
    again.add_argument("--jobs", type=int, default=1, metavar="N", help="experiments at once, on Ray (default 1)")
    again.add_argument("--work", type=Path, metavar="DIR", help="keep what is done here; the same again goes on")
    again.add_argument("--out", type=Path, metavar="FILE", help="where to write the table, JSON")


def run(args: argparse.Namespace) -> int:
    """Run the experiment or make the table; exit code 0."""
    return _run_one(args) if args.what == "run" else _reproduce(args)


def _run_one(args: argparse.Namespace) -> int:
    import json
    import sys

    from fl_sim.representations import experiment
    from fl_sim.representations.config import ExperimentConfig, load_file, load_mapping, parse_setting
    from fl_sim.representations.summary import summary
    from fl_sim.results import encode, replace_file

    settings = dict(parse_setting(text) for text in args.settings)
    if args.config is None:
        config: ExperimentConfig = load_mapping(nested(settings))
    else:
        config = load_file(args.config).with_values(settings)
    record = experiment.run(
        config,
        lambda row: print(
            f"epoch {row.epoch}: loss {row.loss:.4f}, validation accuracy {row.accuracy:.4f}", file=sys.stderr
        ),
        environment=experiment.describe_environment(),
    )
    text = json.dumps(encode(record), indent=2)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(args.out, text.encode() + b"\n")
    if args.picture is not None:
        _draw(config, args.picture)
    print(text if args.json else summary(record))
    return 0


def nested(settings: dict[str, object]) -> dict[str, object]:
    """Full names as nested mappings."""
    tree: dict[str, object] = {}
    for name, value in settings.items():
        *sections, key = name.split(".")
        place = tree
        for section in sections:
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                from fl_sim.config import ConfigError

                raise ConfigError(f"{name}: {section} is a value already; allowed: a section")
            place = inner
        place[key] = value
    return tree


def _draw(config: object, path: Path) -> None:
    from clients.representations.workspace import open_data
    from fl_sim.config import ConfigError
    from fl_sim.representations.config import ExperimentConfig
    from fl_sim.representations.experiment import released_by
    from fl_sim.representations.pictures import draw_tsne

    if not isinstance(config, ExperimentConfig):
        raise TypeError("a checked configuration is expected")
    data = open_data(config.data, config.seed)
    if not data.attributes:
        raise ConfigError(f"--picture: {data.name} has no private attribute to colour by")
    if not config.system.trains:
        raise ConfigError(f"--picture: method {config.method!r} sends nothing to draw")
    names = (f"no {data.attributes[0]}", data.attributes[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_tsne({config.method: released_by(config).released["test"]}, data.test.private[:, 0], names, path, config.seed)


def _reproduce(args: argparse.Namespace) -> int:
    import json
    import sys

    from fl_sim.config import ConfigError
    from fl_sim.representations import reproductions
    from fl_sim.representations.experiment import describe_environment
    from fl_sim.results import encode, replace_file

    if not 1 <= args.jobs <= 1024:
        raise ConfigError(f"--jobs is {args.jobs}; allowed: an integer from 1 to 1024")
    seeds = args.seeds.split(",")
    if not all(seed.isascii() and seed.isdigit() for seed in seeds):
        raise ConfigError(f"--seeds is {args.seeds!r}; allowed: integers of at least 0, separated by commas")
    table = reproductions.run(
        args.name,
        args.source.expanduser().absolute(),
        seeds=tuple(int(seed) for seed in seeds),
        full=args.full,
        layer=args.layer,
        jobs=args.jobs,
        work=args.work,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    table["environment"] = describe_environment()
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(args.out, json.dumps(encode(table), indent=1).encode() + b"\n")
    print(reproductions.show(table), end="")
    return 0
