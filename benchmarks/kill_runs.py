"""Kill runs with SIGKILL at random moments, within their writes too, resume them, and compare with a run left alone.

    python benchmarks/kill_runs.py --kills 50 --ray-kills 5

Every run is killed again and again until one of its resumptions gets to the end. A third of the kills fall at a random
time; the others at a random step of a random write: before the file is synced, cut off at a random byte; before it is
renamed; or before its folder is synced. After every kill the ledger is compared with what a witness saw being released,
and at the end model, metrics and ε with those of the run that nobody killed. A run with noise from the operating system
(``--secure-noise``) cannot be repeated; of that the ledger must count every release.

Runs are forked from this process, which has everything imported, so that a kill costs a second. Those on Ray are
processes of their own, killed at a random time.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fl_sim.cli.main import main as fl_sim
from fl_sim.data_prep.prepare import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.reporting import plots
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.ledger import HEAD_FILE, Ledger

ROUNDS = 4
SETTINGS = [
    "model.hidden=16", "model.layers=1", "model.heads=2", "model.max_tokens=32", "engine.name=inline",
    f"rounds={ROUNDS}", "privacy.q_s=0.8", "server.learning_rate=0.01",
]  # fmt: skip
MOMENTS = ("time", "cut", "rename", "renamed")


class KillError(AssertionError):
    """A run that did not survive a kill as it must."""


@dataclass
class Tally:
    """What happened in all."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    in_file: Counter[str] = field(default_factory=Counter)
    before_the_record: int = 0
    rounds_repeated: int = 0
    releases_repeated: int = 0

    def lines(self) -> list[str]:
        where = ", ".join(f"{name} {count}" for name, count in sorted(self.in_file.items()))
        how = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        return [
            f"{self.kills.total()} kills in {self.runs} runs ({how}); while writing: {where or 'none'}",
            f"{self.before_the_record} before the run's record was whole: nothing released, refused in one line",
            f"{self.rounds_repeated} rounds done again, {self.releases_repeated} of them released before: the same "
            "noise, or (secure noise) another entry in the ledger",
            "all others ended with the model, metrics and ε of the run that nobody killed",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ray-kills", type=int, default=0, help="so many more, of whole processes on Ray")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        for lines in (kill(args.kills, args.seed, Path(folder)), kill_on_ray(args.ray_kills, args.seed, Path(folder))):
            print(*lines, sep="\n")


def kill(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill runs until ``kills`` kills have happened; what happened, in lines; :class:`KillError` if one went wrong."""
    draws, tally = random.Random(seed), Tally()
    corpus = folder / "corpus"
    write_corpus(_sentences(), corpus, name="killed")
    whole = {}
    for noise in ("seeded", "secure"):
        out = folder / f"whole-{noise}"
        began = time.monotonic()
        code = _wait(_forked(_words(corpus, out, noise), out, None))
        _import_all(out)
        whole[noise] = (out, time.monotonic() - began, _steps(out))
        if code != 0:
            raise KillError(f"the run that nobody killed ended with {code}: {_said(out)}")
    while tally.kills.total() < kills:
        noise = "secure" if tally.runs % 4 == 3 else "seeded"
        tally.runs += 1
        _kill_one(corpus, folder / f"run-{tally.runs}", noise, whole[noise], draws, tally, kills)
    return tally.lines()


def _kill_one(
    corpus: Path, out: Path, noise: str, whole: tuple[Path, float, int], draws: random.Random, tally: Tally, kills: int
) -> None:
    reference, seconds, steps = whole
    words, done = _words(corpus, out, noise), 0
    while True:
        moment = draws.choice(MOMENTS) if tally.kills.total() < kills else None
        at = _moment(moment, draws, steps) if moment else None
        process = _forked(words, out, at)
        if moment == "time":
            time.sleep(draws.uniform(0, seconds))
            os.kill(process, signal.SIGKILL)
        code = _wait(process)
        if code == 0 or (code == 2 and _said(out).endswith(f"the run is finished ({ROUNDS} rounds)\n")):
            break
        if code != -signal.SIGKILL:
            raise KillError(f"{out}: ended with {code}: {_said(out)}")
        tally.kills[str(moment)] += 1
        if at is not None:
            tally.in_file[_dying(out)] += 1
        if not _check_remains(out, noise):
            tally.before_the_record += 1
            _check_refused(out)
            shutil.rmtree(out, ignore_errors=True)
            _beside(out, "witness").unlink(missing_ok=True)
            continue
        at_least = _checkpointed(out)
        if at_least < done:
            raise KillError(f"{out}: the checkpoint went back from round {done} to {at_least}")
        done = at_least
        words = ["resume", str(out), "--quiet", "--json"]
    _compare(reference, out, noise)
    seen = Counter(number for number, _ in _released(out))
    tally.releases_repeated += sum(seen.values()) - len(seen)
    tally.rounds_repeated += sum(count > 1 for count in seen.values())


def _moment(moment: str, draws: random.Random, steps: int) -> Callable[[], None] | None:
    """What makes a process kill itself at a step of one of its writes; None where its parent will."""
    if moment == "time":
        return None
    part, share = draws.choice(("checkpoint", "ledger", "")), draws.random()
    number = draws.randrange(ROUNDS if part else steps)

    def arm(out: Path) -> None:
        _die_at(out, moment, number, share, part)

    return arm


# --- in the process that is to die -----------------------------------------------------------------------------------


def _forked(words: list[str], out: Path, arm: Callable[[Path], None] | None) -> int:
    """The id of a process that runs ``fl-sim`` with ``words``, its words to a file beside ``out``."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        said = os.open(_beside(out, "said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # in place of what a test captures
        plots.write_run_plots = lambda run: None  # takes longer than such a run
        _watch(out)
        if arm is not None:
            arm(out)
        else:
            _count_steps(out)
        code = fl_sim(words)
        if arm is None:
            _beside(out, "modules").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(code)


def _import_all(out: Path) -> None:
    """Import here what a run imported, so that the next one finds it there; not its threads, which no fork survives."""
    for name in _beside(out, "modules").read_text().splitlines():
        with suppress(Exception):
            importlib.import_module(name)


def _watch(out: Path) -> None:
    """Write down every release the moment it has its noise: round and a hash of it."""
    noised = BoundedSumStrategy._noised
    witness = os.open(_beside(out, "witness"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def seen(self: Any, server_round: int, total: Any, std: float, purpose: str = "noise") -> Any:
        released, noise = noised(self, server_round, total, std, purpose)
        digest = hashlib.sha256(np.ascontiguousarray(released).tobytes()).hexdigest()
        os.write(witness, f"{server_round} {digest}\n".encode())
        return released, noise

    BoundedSumStrategy._noised = seen  # type: ignore[method-assign]


def _count_steps(out: Path) -> None:
    """Count the syncs of a run, for later ones to know at which to die."""
    fsync, steps = os.fsync, _beside(out, "steps")

    def counted(descriptor: int) -> None:
        fsync(descriptor)
        with steps.open("a") as file:
            file.write("x")

    os.fsync = counted


def _die_at(out: Path, moment: str, number: int, share: float, part: str) -> None:
    """Kill this process at its sync ``number`` (from 0) of files and folders that are called like ``part``: ``cut``
    within the write, or around the rename after it."""
    fsync, left = os.fsync, [number]
    synced_to = {path.name: path.read_bytes().rfind(b"\n") + 1 for path in out.glob("*.jsonl")}

    def die(name: str) -> NoReturn:
        _beside(out, "dying").write_text(name)
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        left[0] -= part in f"{path.parent.name}/{path.name}"
        if left[0] < 0 and moment == "cut" and path.is_file():
            _cut(path, share, synced_to.get(path.name, 0))
            die(_plain(path.name))
        if left[0] < 0 and moment == "renamed" and path.is_dir():
            die(f"{path.name.partition('-')[0]} (folder)")
        fsync(descriptor)
        if path.suffix == ".jsonl":
            synced_to[path.name] = path.stat().st_size
        if left[0] < 0 and moment == "rename" and path.is_file():
            die(_plain(path.name))

    os.fsync = synced


def _cut(path: Path, share: float, synced_to: int) -> None:
    """Keep only a share of what was written to ``path`` since it was synced."""
    size = path.stat().st_size
    first = min(synced_to, size)
    os.truncate(path, first + int(share * (size - first)))


def _plain(name: str) -> str:
    """``latest.safetensors`` for ``.latest.safetensors.1a2b3c4d.tmp``."""
    parts = name.strip(".").split(".")
    return ".".join(part for part in parts if part != "tmp" and not (len(part) == 8 and part not in "manifest"))


# --- what is left ----------------------------------------------------------------------------------------------------


def _check_remains(out: Path, noise: str) -> bool:
    """Whether a run can be resumed; :class:`KillError` if it released something that its ledger does not have, or if
    its checkpoint is damaged."""
    released = _released(out)
    record = (out / HEAD_FILE).exists() and (out / "config.json").exists()
    if not record and released:
        raise KillError(f"{out}: released {released} without a ledger")
    if not record:
        return False
    entries = Counter(entry.round for entry in Ledger.read(out).entries)
    seen = Counter(number for number, _ in released)
    if noise == "seeded":
        hashes = {number: {digest for n, digest in released if n == number} for number in seen}
        if any(len(found) > 1 for found in hashes.values()):
            raise KillError(f"{out}: a round was released with different noise: {hashes}")
        missing = seen.keys() - entries.keys()
    else:
        missing = {number for number in seen if entries[number] < seen[number]}
    if missing:
        raise KillError(f"{out}: the ledger says less than was released, of rounds {sorted(missing)}")
    try:
        _checkpointed(out)
    except ResultsError as error:
        raise KillError(f"{out}: the checkpoint was lost: {error}") from error
    return True


def _checkpointed(out: Path) -> int:
    found = Checkpoint.read(out / "checkpoint")
    return 0 if found is None else found.server_round


def _check_refused(out: Path) -> None:
    """Nothing to resume: one line says so."""
    if out.exists():
        code = _wait(_forked(["resume", str(out), "--quiet"], out, None))
        if code != 2 or _said(out).count("\n") != 1:
            raise KillError(f"{out}: a run without a record was not refused in one line: {code}, {_said(out)}")


def _compare(reference: Path, out: Path, noise: str) -> None:
    """See that a run that was killed and resumed ended as the one that was not."""
    mine, other = RunFolder.open(out), RunFolder.open(reference)
    entries = Ledger.read(out).entries
    result = mine.result or {}
    if result.get("releases") != len(entries) or [t.name for t in out.rglob(".*.tmp")]:
        raise KillError(f"{out}: {result.get('releases')} releases, {len(entries)} in the ledger; or files left over")
    if noise == "secure":
        return
    states = [Checkpoint.read(run.checkpoint_dir) for run in (mine, other)]
    vectors = [state.vector.tobytes() for state in states if state is not None]
    rows = [_without(run.metrics(), "seconds") for run in (mine, other)]
    results = [{k: v for k, v in (run.result or {}).items() if k != "ledger"} for run in (mine, other)]
    weights = [(run.model_dir / "model.safetensors").read_bytes() for run in (mine, other)]
    if vectors[0] != vectors[1] or rows[0] != rows[1] or repr(results[0]) != repr(results[1]) or len(set(weights)) > 1:
        raise KillError(f"{out}: ended otherwise than {reference}")


def _without(metrics: Any, column: str) -> str:
    return str(metrics.drop(columns=column).to_json(double_precision=15))


def _released(out: Path) -> list[tuple[int, str]]:
    file = _beside(out, "witness")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(number), digest) for number, digest in (line.split() for line in lines)]


def _beside(out: Path, name: str) -> Path:
    return out.with_name(f"{out.name}.{name}")


def _said(out: Path) -> str:
    return _beside(out, "said").read_text(errors="replace")


def _dying(out: Path) -> str:
    return _beside(out, "dying").read_text()


def _steps(out: Path) -> int:
    return len(_beside(out, "steps").read_text())


def _wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _words(corpus: Path, out: Path, noise: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    secure = ["--secure-noise"] if noise == "secure" else []
    return ["run", "--corpus", str(corpus), "--out", str(out), "--quiet", "--json", *secure, *settings]


def _sentences() -> Iterator[Sentence]:
    for split in ("train", "validation"):
        for user in range(6):
            for number in range(3):
                mentions = (Mention(0, 3, "PER"),) if number < 2 else ()
                yield Sentence(split, f"user {user}", f"{'Ada' if mentions else 'Rain'} saw {number} boats.", mentions)


# --- on Ray ----------------------------------------------------------------------------------------------------------


def kill_on_ray(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill whole processes on Ray at a random time of their rounds, resume, and compare."""
    if kills == 0:
        return []
    draws, corpus = random.Random(seed), folder / "ray-corpus"
    write_corpus(_sentences(), corpus, name="killed")
    ray = ["--set", "engine.nodes=2", "--set", "engine.num_cpus=2"]

    def command(words: list[str]) -> subprocess.Popen[bytes]:
        plain = [word.replace("engine.name=inline", "engine.name=ray") for word in words]
        silent = subprocess.DEVNULL
        return subprocess.Popen([sys.executable, "-m", "fl_sim.cli.main", *plain], stdout=silent, stderr=silent)

    whole = folder / "ray-whole"
    process = command([*_words(corpus, whole, "seeded"), *ray])
    _rounds_reached(whole, 0, process)
    began = time.monotonic()
    _rounds_reached(whole, ROUNDS, process)
    seconds = time.monotonic() - began
    if process.wait() != 0:
        raise KillError(f"{whole}: ended with {process.returncode}")
    killed = runs = 0
    while killed < kills:
        runs += 1
        out = folder / f"ray-{runs}"
        words = [*_words(corpus, out, "seeded"), *ray]
        while True:
            process = command(words)
            if killed < kills:
                _rounds_reached(out, (_checkpointed(out) + 1) * (out / "checkpoint").exists(), process)
                time.sleep(draws.uniform(0, seconds))
                process.kill()
            if process.wait() not in (0, -signal.SIGKILL):
                raise KillError(f"{out}: ended with {process.returncode}")
            if (out / "result.json").exists():  # the last of all files; a kill after it hits a Ray that is ending
                break
            killed += 1
            words = ["resume", str(out), "--quiet", "--json"]
        _compare(whole, out, "seeded")
    return [f"{killed} kills in {runs} runs on Ray: all ended with the model, metrics and ε of the one nobody killed"]


def _rounds_reached(out: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > number):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
