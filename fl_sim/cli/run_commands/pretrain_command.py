"""Train a small GPT-2 or AWD-LSTM centrally on public text, as the initial model of private runs."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.clients.models.model_names import AWD_LSTM, SMALL_GPT2

if TYPE_CHECKING:
    from fl_sim.clients.batches import Example
    from fl_sim.clients.models.language_model import LanguageModel
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.pretraining import PretrainingConfig

HELD_OUT_SHARE = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim pretrain``."""
    parser.add_argument("text", nargs="+", metavar="FILE", help="public UTF-8 text, a sentence per line, plain or .xz")
    parser.add_argument("--out", required=True, metavar="DIR", help="the model's folder; must be new")
    parser.add_argument("--model", choices=(SMALL_GPT2, AWD_LSTM), default=SMALL_GPT2, help="the architecture")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=2, help="number of blocks or LSTM layers")
    parser.add_argument("--heads", type=int, default=4, help="attention heads per block of small-gpt2")
    parser.add_argument("--embedding", type=int, default=48, help="width of awd-lstm's word vectors and last layer")
    parser.add_argument("--max-tokens", type=int, default=128, help="context length")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the text")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences per step")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak of the cosine schedule")
    parser.add_argument("--seed", type=int, default=0, help="seed of initial weights and order")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Train the model, save it with a record, print the held-out perplexity; return the exit code 0."""
    import json

    from fl_sim.clients.models.frozen_head import has_finite_scores
    from fl_sim.clients.models.language_model import load_model
    from fl_sim.clients.models.pretraining import PretrainingConfig, split_held_out
    from fl_sim.config import ConfigError
    from fl_sim.reporting.model_card import pretraining_card
    from fl_sim.storage.model_files import CARD
    from fl_sim.storage.run_folder import replace_file

    out = Path(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out is {out}; allowed: a folder that is new or empty")
    try:
        config = PretrainingConfig(args.epochs, args.batch_size, args.learning_rate, seed=args.seed)
        spec = _spec(args)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    lines = _read_lines(args.text)
    model = load_model(spec, args.seed)
    train, held_out = split_held_out(model.encode(lines), HELD_OUT_SHARE, args.seed)
    perplexity = _train(model, train, held_out, config)
    if not has_finite_scores(model):
        raise ConfigError(
            f"--learning-rate is {args.learning_rate:g}, at which the model diverged; allowed: a lower one"
        )
    record = {
        "perplexity": perplexity,
        "sentences": len(train),
        "held_out_sentences": len(held_out),
        "text_sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        "model": spec.model_dump(mode="json"),
        "training": asdict(config),
    }
    model.save(out)
    replace_file(out / "pretraining.json", (json.dumps(record, indent=2) + "\n").encode())
    replace_file(out / CARD, pretraining_card(record, "causal" if args.model == SMALL_GPT2 else "own").encode())
    text = f"held-out perplexity {record['perplexity']:.1f}; the model is in {out}"
    print(json.dumps({"folder": str(out), **record}) if args.json else text)
    return 0


def _spec(args: argparse.Namespace) -> ModelSpec:
    """Return the model of the flags; the sizes of the other architecture stay at their defaults."""
    from fl_sim.clients.models.model_spec import ModelSpec

    own = {"heads": args.heads} if args.model == SMALL_GPT2 else {"embedding": args.embedding}
    return ModelSpec(name=args.model, hidden=args.hidden, layers=args.layers, max_tokens=args.max_tokens, **own)


def _read_lines(paths: list[str]) -> list[str]:
    from fl_sim.config import ConfigError
    from fl_sim.data_prep.store.textfiles import decoded_lines

    lines = [line.strip() for path in paths for _, line in decoded_lines(Path(path)) if line.strip()]
    if len(lines) < 2:
        raise ConfigError(f"{', '.join(paths)}: {len(lines)} sentences; allowed: at least 2")
    return lines


def _train(
    model: LanguageModel, train: Sequence[Example], held_out: Sequence[Example], config: PretrainingConfig
) -> float:
    from fl_sim.cli.progress_bar import counting
    from fl_sim.clients.models.pretraining import pretrain

    with counting("training") as show:
        return pretrain(
            model,
            train,
            held_out,
            config,
            lambda step, steps, loss: show(step, steps, f"{step:,} of {steps:,} steps, loss {loss:.2f}"),
        )
