"""Continue prompts with the model of a run; the texts are post-processing, so the run's ε is theirs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_sim.clients.generation import Continuation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim generate``."""
    parser.add_argument("run", metavar="DIR", type=Path, help="a run folder with a model (next-word)")
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT",
        help="a public text to continue; may be given several times (default: one empty prompt)",
    )  # fmt: skip
    parser.add_argument("--prompts", metavar="FILE", type=Path, help="prompts from a file in UTF-8, one per line")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="texts per prompt (default 1)")
    parser.add_argument("--max-tokens", type=int, default=40, metavar="N", help="new tokens per text (default 40)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0 takes the most probable token (default 1)"
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest (default 0: all)")
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the likeliest that have probability P (default 1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the texts (default 0)")
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="texts at a time (default 16)")
    parser.add_argument(
        "--out", metavar="FILE.jsonl", type=Path,
        help="write JSON lines that fl-sim prepare jsonl reads, with columns text and user (the number of the sample)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Generate texts, print or write them with their guarantee; return the exit code 0."""
    from fl_sim.api.runs import open_run
    from fl_sim.cli.progress_bar import counting
    from fl_sim.cli.written_files import check_no_other
    from fl_sim.clients.errors import ModelError
    from fl_sim.storage.run_folder import ResultsError, encode

    if args.seed < 0:
        raise ModelError(f"seed is {args.seed}; allowed: an integer of at least 0")
    if args.out is not None and (args.out.is_dir() or not args.out.absolute().parent.is_dir()):
        raise ResultsError(f"--out is {args.out}; allowed: a file in a folder that exists")
    check_no_other("--out", args.out)
    prompts = [*args.prompt, *_read_prompts(args.prompts)]
    opened = open_run(args.run)
    names = ("samples", "max_tokens", "temperature", "top_k", "top_p", "seed", "batch_size")
    with counting("texts", args.quiet) as show:
        texts = opened.generate(prompts or [""], **{name: getattr(args, name) for name in names}, observer=show)
    note = opened.note_on_texts()
    written = None if args.out is None else _write(args.out, texts)
    if args.json:
        shown = [] if written is not None else [_record(text) for text in texts]
        facts = {"run": args.run.name, "texts": shown, "written": written, "privacy": note}
        print(json.dumps(encode(facts), ensure_ascii=False))
    else:
        lines = _lines(texts, args.samples) if written is None else [f"{written:,} texts are in {args.out}"]
        print("\n".join([*lines, "", f"Privacy: {note['note']}"]))
    return 0


def _read_prompts(path: Path | None) -> list[str]:
    """Return the prompts of a file, blank lines left out; raise ResultsError if it has none."""
    from fl_sim.data_prep.store.textfiles import decoded_lines
    from fl_sim.storage.run_folder import ResultsError

    if path is None:
        return []
    prompts = [line.rstrip("\r\n") for _, line in decoded_lines(path) if line.strip()]
    if not prompts:
        raise ResultsError(f"--prompts is {path}, which has no prompt; allowed: a file with one per line")
    return prompts


def _lines(texts: list[Continuation], samples: int) -> list[str]:
    """Return a line per text: its number, and the prompt with its continuation, controls escaped."""
    from fl_sim.formats import printable

    return [
        f"{text.number + 1}{f'.{text.sample + 1}' if samples > 1 else ''}: {printable(text.whole)}" for text in texts
    ]


def _record(text: Continuation) -> dict[str, Any]:
    return {
        "prompt": text.prompt,
        "sample": text.sample,
        "text": text.text,
        "tokens": text.tokens,
        "stopped": text.stopped,
    }


def _write(path: Path, texts: list[Continuation]) -> int:
    """Write the texts that are not blank as JSON lines; return their number."""
    from fl_sim.files import owner_only
    from fl_sim.storage.run_folder import replace_file

    rows = [
        {"user": f"sample {text.sample}", "text": text.whole, "prompt": text.prompt}
        for text in texts
        if text.whole.strip()
    ]
    with owner_only():  # texts of a noiseless run are as private as its corpus
        replace_file(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return len(rows)
