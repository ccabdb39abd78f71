"""Give every command input without end, and measure what it takes to refuse it.

    python benchmarks/hostile_input.py [--only NAME …] [--json FILE]

Each attack runs in a process of its own. It must end with exit code 2 and one line without control characters, within
5 s of processor time and 1 GB of memory. The files are made in a temporary folder, one after the other; they take at
most 100 MB of disk, and unfold to 1 GiB each.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec

MOST_SECONDS, MOST_BYTES = 5.0, 10**9
MIB = 1 << 20
_GIVE_UP_SECONDS, _GIVE_UP_BYTES = 60.0, 4 * 10**9
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
_ROW = b'{"text": "Hello there, Ada.", "user": "ann"}\n'


@dataclass(frozen=True)
class Attack:
    """A command with hostile input.

    Attributes:
        name: of the attack.
        prepare: makes the input in a folder, of about so many MiB when it is unfolded; returns the command's words.
        says: what its one line must contain.
    """

    name: str
    prepare: Callable[[Path, int], list[str]]
    says: str


@dataclass(frozen=True)
class Outcome:
    """What a command took, and what it said."""

    name: str
    code: int | None
    cpu_seconds: float
    wall_seconds: float
    megabytes: float
    said: str
    holds: bool


def table(kind: str, source: Path, folder: Path, *flags: str) -> list[str]:
    """Return the words of ``fl-sim prepare`` for a table."""
    columns = ["--text-column", "text", "--user-column", "user", "--tagger", "rules"]
    return ["prepare", kind, "--source", str(source), *columns, "--out", str(folder / "corpus"), "--quiet", *flags]


def _packed(kind: str, name: str, block: bytes) -> Callable[[Path, int], list[str]]:
    def prepare(folder: Path, size: int) -> list[str]:
        path = folder / name
        with gzip.open(path, "wb", 1) as file:
            for _ in range(size * MIB // len(block)):
                file.write(block)
        return table(kind, path, folder)

    return prepare


def _endless_sentence(folder: Path, size: int) -> list[str]:
    (folder / "tagged.txt").write_bytes(b"Ada O\n" * 400_000)
    return ["prepare", "iob", "--source", str(folder / "tagged.txt"), "--out", str(folder / "corpus")]


def _zstandard(folder: Path, size: int) -> list[str]:
    path = folder / "dataset" / "zeros.jsonl.zst"
    path.parent.mkdir()
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        for _ in range(size):
            file.write(bytes(MIB))
    columns = ["--text-column", "text", "--user-column", "user", "--tagger", "rules"]
    return ["prepare", "hf", "--source", str(path.parent), *columns, "--out", str(folder / "corpus")]


def _zip(folder: Path, size: int) -> list[str]:
    with zipfile.ZipFile(folder / "rows.jsonl.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("rows.jsonl", _ROW * (size * MIB // 16 // len(_ROW)))
    return table("jsonl", folder / "rows.jsonl.zip", folder)


def _hole(folder: Path, size: int) -> list[str]:
    path = folder / "hole.jsonl"
    path.touch()
    os.truncate(path, size << 30)
    return table("jsonl", path, folder)


def _plain(kind: str, name: str, content: Callable[[int], bytes], *flags: str) -> Callable[[Path, int], list[str]]:
    def prepare(folder: Path, size: int) -> list[str]:
        (folder / name).write_bytes(content(size))
        return table(kind, folder / name, folder, *flags)

    return prepare


def _rows(texts: int, length: int) -> Callable[[Path, int], list[str]]:
    """Write a Parquet file of so many equal rows, whose text has so many bytes."""

    def prepare(folder: Path, size: int) -> list[str]:
        path = folder / "equal.parquet"
        rows = texts * min(size, 1024) // 1024
        some = min(rows, 1_000_000)
        index = pa.array([0]).take(pa.array([0] * some))
        text = pa.DictionaryArray.from_arrays(index.cast(pa.int32()), pa.array(["y" * length]))
        user = pa.DictionaryArray.from_arrays(index.cast(pa.int32()), pa.array(["ann"]))
        batch = pa.table({"text": text, "user": user})
        with pq.ParquetWriter(path, batch.schema, compression="zstd") as file:
            for start in range(0, rows, some):
                file.write_table(batch.slice(0, rows - start), row_group_size=some)
        return table("parquet", path, folder)

    return prepare


def _source(path: str) -> Callable[[Path, int], list[str]]:
    return lambda folder, size: table("jsonl", Path(path), folder)


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def _model(change: Callable[[Path], None]) -> Callable[[Path, int], list[str]]:
    def prepare(folder: Path, size: int) -> list[str]:
        model = folder / "model"
        load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0).save(model)
        change(model)
        words = ["run", "--engine", "inline", "--rounds", "1", "--out", str(folder / "run"), "--quiet"]
        return [*words, "--set", f"model.name={model}", "--set", "privacy.initial_model=disjoint"]

    return prepare


def _configured(**changes: object) -> Callable[[Path, int], list[str]]:
    def change(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | changes))

    return _model(change)


def _linked(name: str, target: str) -> Callable[[Path, int], list[str]]:
    def change(model: Path) -> None:
        (model / name).unlink()
        (model / name).symlink_to(target)

    return _model(change)


def _command(words: str) -> Callable[[Path, int], list[str]]:
    return lambda folder, size: [word.format(folder=folder, fifo=folder / "fifo") for word in words.split()]


def _with_fifo(words: str) -> Callable[[Path, int], list[str]]:
    def prepare(folder: Path, size: int) -> list[str]:
        _fifo(folder)
        return _command(words)(folder, size)

    return prepare


_ACCOUNT = "account mechanism --rounds 10 --z 4 --q-s 0.1 --user-sentences 32"
_OBEYED = "\x1b]0;owned\x07\x1b[2J\u202e"

ATTACKS = (
    Attack("a line of zeros in gz", _packed("jsonl", "zeros.jsonl.gz", bytes(MIB)), "unfold to more than"),
    Attack("a line of zeros in zst, in a dataset's folder", _zstandard, "unfold to more than"),
    Attack("a zip file", _zip, "packed as .zip"),
    Attack("equal rows in gz", _packed("jsonl", "rows.jsonl.gz", _ROW * (MIB // len(_ROW))), "unfold to more than"),
    Attack("a tagged sentence without end", _endless_sentence, "without an end"),
    Attack(
        "a quoted cell without end",
        _plain("csv", "quoted.csv", lambda size: b'text,user\n"' + (b"so it goes on, " * 100 + b"\n") * 14_000),
        "without an end",
    ),
    Attack("a line without end", _plain("jsonl", "line.jsonl", lambda size: b"x" * 20 * MIB), "without an end"),
    Attack("a terabyte of nothing (a sparse file)", _hole, "unfold to more than"),
    Attack("30 million equal rows of Parquet", _rows(30_000_000, 20), "unfold to more than"),
    Attack("a text of a megabyte in each of 20,000 rows of Parquet", _rows(20_000, MIB), "unfold to more than"),
    Attack(
        "JSON nested two million deep",
        _plain("jsonl", "deep.jsonl", lambda size: b'{"text":' + b"[" * 2 * MIB + b"]" * 2 * MIB + b"}\n"),
        "not JSON",
    ),
    Attack(
        "a number of 200,000 digits",
        _plain("jsonl", "digits.jsonl", lambda size: b'{"text":"a","user":' + b"9" * 200_000 + b"}\n"),
        "not JSON",
    ),
    Attack(
        "a class for every row",
        _plain(
            "jsonl",
            "classes.jsonl",
            lambda size: b"".join(b'{"text":"Ada left.","user":"a%d","c":"c%d"}\n' % (n, n) for n in range(3_000)),
            "--target-column",
            "c",
        ),
        "1,000 classes",
    ),
    Attack(
        "a split for every row",
        _plain(
            "jsonl",
            "splits.jsonl",
            lambda size: b"".join(b'{"text":"Ada left.","user":"a%d","s":"s%d"}\n' % (n, n) for n in range(3_000)),
            "--split-column",
            "s",
        ),
        "100 splits",
    ),
    Attack("/dev/zero as a source", _source("/dev/zero"), "a device"),
    Attack("a FIFO as a source", lambda folder, size: table("jsonl", _fifo(folder), folder), "a FIFO"),
    Attack("/dev/zero as a configuration", _command("run /dev/zero"), "a device"),
    Attack("a FIFO as a list of names", _with_fifo("run --out {folder}/r --set privacy.public_names={fifo}"), "a FIFO"),
    Attack("a model of a million layers", _configured(n_layer=10**6), "model.max_layers"),
    Attack("text for a model's number", _configured(n_layer="twelve"), "n_layer is 'twelve'"),
    Attack("a vocabulary of a billion words", _configured(vocab_size=10**9, n_embd=1024), "memory are free"),
    Attack("a model's configuration of a million brackets", _model(lambda m: _nest(m / "config.json")), "no JSON"),
    Attack("/dev/zero as a model's configuration", _linked("config.json", "/dev/zero"), "a device"),
    Attack("/dev/zero as a tokenizer", _linked("tokenizer.json", "/dev/zero"), "a device"),
    Attack(
        "a GPT-2 of 1.6 trillion parameters",
        _command("run --out {folder}/run --set model.hidden=16384 --set model.layers=512"),
        "memory are free",
    ),
    Attack("the smallest double as δ", _command(f"{_ACCOUNT} --delta 5e-324"), "delta is 5e-324"),
    Attack(
        "escape sequences in the name of a file",
        lambda folder, size: table("jsonl", folder / f"{_OBEYED}.jsonl", folder),
        r"\u001b]0;owned\u0007\u001b[2J\u202e.jsonl",
    ),
    Attack(
        "escape sequences in the name of a user",
        _plain(
            "jsonl",
            "users.jsonl",
            lambda size: json.dumps(
                {"text": "Ada", "user": _OBEYED, "entities": [{"start": 9, "end": 10, "label": "X"}]}
            ).encode(),
            "--entities-column",
            "entities",
        ),
        "of user",
    ),
    Attack("escape sequences in the name of a flag", lambda folder, size: ["run", f"--{_OBEYED}"], r"\x1b]0;owned\x07"),
)


def _nest(path: Path) -> None:
    path.write_text("[" * 10**6)


def run(attack: Attack, folder: Path, size: int) -> Outcome:
    """Run one attack in a process of its own, and judge it."""
    words = attack.prepare(folder, size)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_sim", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    peak, usage = _watch(process)
    said = process.stdout.read().decode(errors="replace") if process.stdout else ""
    cpu = usage.ru_utime + usage.ru_stime
    one_line = said.count("\n") == 1 and not _CONTROL.search(said) and attack.says in said
    within = cpu <= MOST_SECONDS and peak <= MOST_BYTES
    code = process.returncode
    wall = time.monotonic() - began
    holds = code == 2 and one_line and within
    return Outcome(attack.name, code, round(cpu, 1), round(wall, 1), round(peak / 1e6), said[-300:], holds)


def _watch(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
    """Wait for a process, ending it after a minute or at 4 GB; return its peak memory in bytes, and what it used."""
    ended, peak = threading.Event(), 0

    def watch() -> None:
        nonlocal peak
        began = time.monotonic()
        while not ended.wait(0.02):
            peak = max(peak, _memory_of(process.pid))
            if time.monotonic() - began > _GIVE_UP_SECONDS or peak > _GIVE_UP_BYTES:
                process.kill()

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    watcher.join()
    return peak, usage


def _memory_of(process_id: int) -> int:
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="attacks whose name contains one of these words")
    parser.add_argument("--size", type=int, default=1024, help="MiB that a bomb unfolds to (default 1024)")
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    args = parser.parse_args()
    outcomes = []
    for attack in ATTACKS:
        if args.only and not any(word in attack.name for word in args.only):
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
            outcomes.append(run(attack, Path(folder), args.size))
        found = outcomes[-1]
        verdict = "ok  " if found.holds else "FAIL"
        figures = f"{found.cpu_seconds:5.1f} s CPU {found.wall_seconds:6.1f} s {found.megabytes:6.0f} MB"
        print(f"{verdict} {figures}  {found.name}" + ("" if found.holds else f"\n     {found.code}: {found.said!r}"))
    if args.json:
        args.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    print(f"{sum(outcome.holds for outcome in outcomes)} of {len(outcomes)} hold")
    return 0 if all(outcome.holds for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
