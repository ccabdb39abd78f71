"""``fl-sim generate``: continue prompts with the model of a run; the texts are post-processing, so its ε is theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fl_sim.api.runs import Run, open_run
from fl_sim.cli.flags import check_writable, print_json
from fl_sim.cli.from_signature import FILE, FOLDER, options_of
from fl_sim.cli.progress_bar import counting
from fl_sim.cli.verbs import Verb, as_json, quiet
from fl_sim.data_prep.store.textfiles import decoded_lines
from fl_sim.files import replace_private_file
from fl_sim.formats import printable
from fl_sim.storage.run_folder import ResultsError

if TYPE_CHECKING:
    from fl_sim.clients.generation import Continuation


@click.command(cls=Verb)
@click.argument("run", type=FOLDER, metavar="RUN")
@options_of(Run.generate, but=("self", "observer"))
@click.option("--prompts", "prompts_from", type=FILE, metavar="FILE", help="Prompts in UTF-8, one per line.")
@click.option(
    "--out", type=FILE, metavar="FILE.jsonl",
    help="Write JSON lines that fl-sim prepare jsonl reads, with columns text and user (the number of the sample).",
)  # fmt: skip
@as_json
@quiet
def generate(
    run: Path,
    prompts: tuple[str, ...],
    prompts_from: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **sampling: Any,
) -> None:
    """Continue prompts with the model of a run; the texts are post-processing, so the run's ε is theirs."""
    check_writable("--out", out, new=True)
    whole = [*(prompts if prompts != ("",) else ()), *_read_prompts(prompts_from)]
    opened = open_run(run)
    note = opened.note_on_texts()  # before texts are computed for minutes: it checks the ledger
    with counting("texts", quiet) as show:
        texts = opened.generate(whole or [""], observer=show, **sampling)
    written = None if out is None else _write(out, texts)
    if as_json:
        shown = [] if written is not None else texts
        print_json({"run": run.name, "texts": shown, "written": written, "privacy": note})
        return
    if written is None:
        for text in texts:
            sample = f".{text.sample + 1}" if sampling["samples"] > 1 else ""
            print(f"{text.number + 1}{sample}: {printable(text.whole)}")
    else:
        print(f"{written:,} texts are in {out}")
    print(f"\nPrivacy: {note['note']}")


def _read_prompts(path: Path | None) -> list[str]:
    """Return the prompts of a file, blank lines left out; raise ResultsError if it has none."""
    if path is None:
        return []
    prompts = [line.rstrip("\r\n") for _, line in decoded_lines(path) if line.strip()]
    if not prompts:
        raise ResultsError(f"--prompts is {path}, which has no prompt; allowed: a file with one per line")
    return prompts


def _write(path: Path, texts: list[Continuation]) -> int:
    """Write the texts that are not blank as JSON lines; return their number."""
    rows = [
        {"user": f"sample {text.sample}", "text": text.whole, "prompt": text.prompt}
        for text in texts
        if text.whole.strip()
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    replace_private_file(path, lines.encode())  # texts of a noiseless run are as private as its corpus
    return len(rows)
