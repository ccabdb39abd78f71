"""The steps done in each checkout before the comparison: prepare corpora, do runs, call the other verbs."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkout_comparison.checkouts import LONGEST, CommandError, CommandResult, Side
from checkout_comparison.differences import Items
from checkout_comparison.sources import RUNS, write_sources

GOLDEN = Path("tests") / "golden"
INTERRUPTED = Path("runs") / "interrupted"
TAKEN_OVER = Path("runs") / "taken-over"
ROUNDS_BEFORE_THE_KILL = 3

_POSTS = "--text-column text --user-column user --split-column split --no-split-sentences --json"
_MARKED = f"{_POSTS} --entities-column entities --target-column topic"
_MECHANISM = "--q-u 0.5 --q-e 0.5 --q-s 0.5 --user-cap 2 --delta 1e-5"

PREPARED = {
    "posts": f"prepare jsonl --source sources/posts.jsonl {_MARKED}",
    "posts-lower": f"prepare parquet --source sources/posts.parquet {_MARKED} --preprocess paper --family-names",
    "posts-rules": f"prepare csv --source sources/posts.csv {_POSTS} --tagger rules+patterns --entities person,loc",
    "posts-tagged": f"prepare jsonl --source sources/posts.jsonl {_POSTS} --processes 1 --high-recall",
    "tagged": "prepare iob --source sources/tagged.iob --sentences-per-user 1 --json",
    "conll": "prepare conll2003 --source sources/conll --json",
    "fewer": "prepare prepared --source bundled --max-users 20 --json",
}
"""How each corpus under ``corpora/`` is prepared (without ``--out``)."""

PRINTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "account-target": (
        f"account --strategy uedp --rounds 20 --target-epsilon 2 {_MECHANISM} --reach-users 3 --json", ()
    ),
    "account-solve-rounds": (
        "account --strategy uedp --z 3 --target-epsilon 4 --solve-for rounds --target-unit user "
        f"{_MECHANISM} --json", ()
    ),
    "account-user-level": (
        "account --strategy user_level --z 1 --rounds 9 --q-u 0.1 --delta 1e-5 --reach-users 4 --json", ()
    ),
    "account-ledger": (
        "account --ledger runs/uedp runs/user-level-steps --delta 1e-5 --reach-users 2 --json",
        ("uedp", "user-level-steps"),
    ),
    "account-joined": ("account --ledger runs/uedp --joined-at 2 --delta 1e-5 --json", ("uedp",)),
    "audit": ("audit --strategy uedp --z 1 --rounds 2 --delta 1e-5 --trials 200 --json", ()),
    "audit-published": (
        "audit --strategy published-as-coded --estimator f_e_plus --users 20 --users-per-round 5 --q-e 0.5 --z 2 "
        "--sentences 100 --sensitive-sentences 80 --entities 10 --rounds 2 --delta 1e-5 --trials 200 --json", ()
    ),
    "audit-canaries": ("audit --canaries 4 --z 1 --rounds 2 --delta 1e-5 --json", ()),
    "deidentify": ("deidentify corpora/posts --out corpora/category --json", ("posts",)),
    "deidentify-surrogate": (
        "deidentify corpora/posts --out corpora/surrogate --mode surrogate --seed 5 --json", ("posts",)
    ),
    "entities": (
        "entities --corpus corpora/posts --z 1 --rounds 5 --delta 0.1 --within 5 150 --show-names --json", ("posts",)
    ),
    "entities-run": ("entities --run runs/uedp --json", ("uedp",)),
    "identity": ("identity corpora/posts --json", ("posts",)),
    "ner-evaluate": ("ner evaluate rules --gold corpora/posts --resamples 50 --json", ("posts",)),
    "plan": (
        "plan --corpus corpora/posts --target-epsilon 2 --sentences-per-round 5 --rounds 10 --delta 0.1 --json",
        ("posts",),
    ),
    "plot": ("plot runs/uedp runs/user-level-steps --out pictures --json", ("uedp", "user-level-steps")),
    "pretrain": (
        "pretrain sources/public.txt --out models/small --hidden 16 --layers 1 --heads 2 --max-tokens 32 --epochs 1 "
        "--seed 4 --json", ("sources",)
    ),
    "report": ("report runs/uedp --json", ("uedp",)),
    "report-published": ("report runs/published --json", ("published",)),
    "report-classification": ("report runs/classification --json", ("classification",)),
    "represent": ("represent run configs/represent.toml --out represented/record.json --json", ("sources",)),
    "represent-nodes": (
        "represent run configs/represent.toml --set nodes=2 --set method=noise --set attacks.leakage=false "
        "--set attacks.mdl=false --json", ("sources",)
    ),
    "reproduce-list": ("reproduce --list --json", ()),
    "reproduce": ("reproduce fig4 --out figures --record records --quiet --json", ()),
    "stats": ("stats corpora/posts --verify --json", ("posts",)),
    "stats-bundled": ("stats bundled --json", ()),
    "sweep": ("sweep configs/sweep.toml --out sweep --quiet --json", ("posts",)),
}  # fmt: skip
"""Other commands that print JSON, and the steps that they need."""

ALONE = {"sweep", *(name for name in RUNS if "ray" in name)}
"""Steps whose commands start further processes; they run in a new process, as a user would start them."""

OLDER = {
    "report": ("report {}/runs/uedp --json", ("uedp",)),
    "account": ("account --ledger {}/runs/uedp --delta 1e-5 --json", ("uedp",)),
    "stats": ("stats {}/corpora/posts --verify --json", ("posts",)),
}
"""Commands that read what the older checkout wrote; ``{}`` stands for its working folder."""

REFUSED = [
    "unheard-of", "run --unheard-of", "run --rounds 0 --out refused", "run --set privacy.unheard_of=1",
    "run --q-u 2", "run no-such-file.toml", "run --corpus no-such-folder", "resume no-such-folder",
    "report no-such-folder", "account", "account --strategy uedp", "account --strategy uedp --users 3",
    "stats no-such-folder", "prepare jsonl --source no-such-file --text-column t --user-column u --out refused",
    "represent run --set method=unheard-of", "reproduce unheard-of", "sweep no-such-file.toml --out refused",
    "plan --corpus bundled --target-epsilon -1 --sentences-per-round 5 --rounds 10", "deidentify no-such --out refused",
]  # fmt: skip
"""Commands that are refused with an exit code and one line on stderr."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step done in a checkout.

    Attributes:
        name: unique name.
        action: does the step in the checkout's working folder.
        needs: the steps that must come before it.
        reads_older: whether it reads what the older checkout wrote; such steps come after all others.
    """

    name: str
    action: Callable[[Side], None]
    needs: tuple[str, ...] = ()
    reads_older: bool = False


def all_steps() -> dict[str, Step]:
    """Return every step by name, each after the steps that it needs."""
    steps = [Step("sources", lambda side: write_sources(side.work))]
    steps += [_command_step(name, f"{words} --out corpora/{name}", ("sources",)) for name, words in PREPARED.items()]
    steps += [
        _command_step(name, f"run configs/{name}.toml --out runs/{name} --quiet --json", ("posts",)) for name in RUNS
    ]
    steps += [_command_step(name, words, needs) for name, (words, needs) in PRINTED.items()]
    steps += [_golden_step(name) for name in GOLDEN_CASES]
    steps += [
        Step("refused", _refuse),
        Step("interrupted", _interrupt, ("posts",)),
        Step("taken-over", _take_over, ("interrupted",), reads_older=True),
        *(_older_step(name, words, needs) for name, (words, needs) in OLDER.items()),
    ]  # fmt: skip
    return {step.name: step for step in steps}


def with_needs(names: Iterable[str], steps: dict[str, Step]) -> list[Step]:
    """Return the steps with these names and all steps that they need, in order."""
    wanted, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(steps[name].needs)
    return [step for name, step in steps.items() if name in wanted]


def _command_step(name: str, words: str, needs: tuple[str, ...]) -> Step:
    return Step(name, lambda side: _run_command(side, name, words), needs)


def _older_step(name: str, words: str, needs: tuple[str, ...]) -> Step:
    step = f"older-{name}"
    return Step(step, lambda side: _run_command(side, step, words.format(side.older_work)), needs, reads_older=True)


def _run_command(side: Side, step: str, words: str) -> None:
    """Run a command that must succeed, and keep its result under the step's name."""
    result = side.run(words.split(), alone=step in ALONE)
    side.results[step] = result
    if result.code != 0:
        raise CommandError(f"{side.label}: fl-sim {words}: exit code {result.code}: {result.last_line}")


# ε of the golden cases


def _mixture_cases(path: Path) -> list[list[str]]:
    return [_account(case) for case in json.loads(path.read_text(encoding="utf-8"))["cases"]]


def _design_cases(path: Path) -> list[list[str]]:
    common = {"user_cap": 15, "delta": 1e-5}
    return [_account(case | common) for case in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def _published_cases(path: Path) -> list[list[str]]:
    names = ("estimator", "users", "users_per_round", "z", "rounds", "delta")
    text_names = ("q_e", "sentences", "sensitive_sentences")
    commands = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            keys = names if row["estimator"] == "user_level" else names + text_names
            commands.append(["account", "--strategy", "published", "--json", *_flags({n: row[n] for n in keys})])
    return commands


GOLDEN_CASES: dict[str, tuple[str, Callable[[Path], list[list[str]]]]] = {
    "mixture": ("mixture_epsilon.json", _mixture_cases),
    "design": ("design_epsilon.json", _design_cases),
    "published": ("published_epsilon.csv", _published_cases),
}
"""The files of tests/golden, and how their cases become ``fl-sim account`` commands."""


def _account(case: dict[str, object]) -> list[str]:
    return ["account", "--strategy", "uedp", "--json", *_flags({k: v for k, v in case.items() if k != "epsilon"})]


def _flags(values: dict[str, object]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _golden_step(name: str) -> Step:
    file, cases = GOLDEN_CASES[name]

    def action(side: Side) -> None:
        commands = cases(side.checkout / GOLDEN / file)
        results = [side.run(words) for words in commands]
        for words, result in zip(commands, results, strict=True):
            if result.code != 0:
                raise CommandError(f"{side.label}: fl-sim {' '.join(words)}: {result.last_line}")
        computed = {" ".join(words[3:]): json.loads(each.out) for words, each in zip(commands, results, strict=True)}
        side.results[f"golden-{name}"] = CommandResult(0, json.dumps(computed), "")

    return Step(f"golden-{name}", action)


# Refusals, and interrupted runs


def _refuse(side: Side) -> None:
    results = [side.run(words.split()) for words in REFUSED]
    outcomes = {
        f"fl-sim {words}": f"exit code {result.code}, {len(result.err.splitlines())} line(s) on stderr, "
        f"{len(result.out.splitlines())} on stdout"
        for words, result in zip(REFUSED, results, strict=True)
    }
    side.results["refused"] = CommandResult(0, json.dumps(outcomes), "")


def refusals(side: Side) -> Items:
    """Return, for every refused command, its exit code and how many lines it printed."""
    return dict(json.loads(side.results["refused"].out))


def _interrupt(side: Side) -> None:
    """Kill a run after a few rounds, keep a copy of its folder, and resume it."""
    command = side.command(["run", "configs/interrupted.toml", "--out", str(INTERRUPTED), "--quiet"])
    _kill_after_rounds(side, command, side.work / INTERRUPTED / "metrics.jsonl")
    shutil.copytree(side.work / INTERRUPTED, side.work / _as_killed())
    _run_command(side, "resumed", f"resume {INTERRUPTED} --quiet --json")


def _as_killed() -> Path:
    return INTERRUPTED.with_name(f"{INTERRUPTED.name}-as-killed")


def _kill_after_rounds(side: Side, command: Sequence[str], metrics: Path) -> None:
    with subprocess.Popen(
        command, cwd=side.work, env=side.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + LONGEST
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") > ROUNDS_BEFORE_THE_KILL):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise CommandError(f"{side.label}: the run ended before it was interrupted: {process.communicate()[1]}")
            time.sleep(0.02)
        process.kill()


def _take_over(side: Side) -> None:
    """Resume the run of the older checkout that was killed; a refusal in one line is also accepted."""
    shutil.copytree(side.older_work / _as_killed(), side.work / TAKEN_OVER)
    result = side.run(["resume", str(TAKEN_OVER), "--quiet", "--json"])
    side.results["taken-over"] = result
    if result.code not in (0, 2) or (result.code == 2 and len(result.err.strip().splitlines()) != 1):
        reason = f"exit code {result.code}: {result.last_line}"
        raise CommandError(f"{side.label}: resuming the older checkout's run: {reason}")
