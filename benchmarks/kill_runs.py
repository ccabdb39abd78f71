"""Kill runs with SIGKILL at random moments, also during writes, resume them, and compare with an uninterrupted run.

    python benchmarks/kill_runs.py --kills 100 --ray-kills 5 --worker-kills 20 --raylet-kills 5

Every run is killed again and again until one of its resumptions reaches the end. A kill falls at a random time, or at a
random step of a random write: before the file is synced (cut off at a random byte), before it is renamed, or before its
folder is synced. After every kill the ledger is compared with the releases that a witness recorded; at the end the
model, metrics and ε are compared with those of the uninterrupted run. A run with noise from the operating system
(``--secure-noise``) cannot be repeated; its ledger must count every release.

Runs are forked from this process, which has everything imported, so that a kill takes a second. Runs on Ray are
separate processes, killed at a random time.
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
import psutil

from fl_sim.cli.main import main as fl_sim
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.reporting import plots
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.ledger import HEAD_FILE, Ledger

ROUNDS = 4
LONG_ROUNDS = 40
WORKERS = 2
SETTINGS = [
    "model.hidden=16", "model.layers=1", "model.heads=2", "model.max_tokens=32", "engine.name=inline",
    f"rounds={ROUNDS}", "privacy.q_s=0.8", "server.learning_rate=0.01",
]  # fmt: skip
MOMENTS = ("time", "cut", "rename", "renamed")


class KillError(AssertionError):
    """A run did not survive a kill as it must."""


@dataclass
class Tally:
    """Counts over all runs.

    Attributes:
        runs: runs that were started.
        kills: kills by moment.
        in_file: kills during a write, by file.
        before_the_record: kills before the run could be resumed.
        rounds_repeated: rounds that were released more than once.
        releases_repeated: releases beyond the first of a round.
    """

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    in_file: Counter[str] = field(default_factory=Counter)
    before_the_record: int = 0
    rounds_repeated: int = 0
    releases_repeated: int = 0

    def lines(self) -> list[str]:
        """Return the counts as lines to print."""
        where = ", ".join(f"{name} {count}" for name, count in sorted(self.in_file.items()))
        how = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        return [
            f"{self.kills.total()} kills in {self.runs} runs ({how}); while writing: {where or 'none'}",
            f"{self.before_the_record} before the run's record was complete: nothing released, refused in one line",
            f"{self.rounds_repeated} rounds repeated, {self.releases_repeated} releases repeated: with the same noise, "
            "or (secure noise) another entry in the ledger",
            "all others ended with the model, metrics and ε of the uninterrupted run",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ray-kills", type=int, default=0, help="additional kills, of whole processes on Ray")
    parser.add_argument("--worker-kills", type=int, default=0, help="additional kills, of workers of runs on Ray")
    parser.add_argument("--raylet-kills", type=int, default=0, help="additional kills, of the raylet of runs on Ray")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        for kills, of_what in (
            (args.kills, kill),
            (args.ray_kills, kill_on_ray),
            (args.worker_kills, kill_workers),
            (args.raylet_kills, kill_raylets),
        ):
            if kills:
                own = Path(folder) / of_what.__name__
                own.mkdir()
                print(*of_what(kills, args.seed, own), sep="\n", flush=True)


def kill(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill runs until ``kills`` kills have happened; return the counts as lines.

    Args:
        kills: how often to kill.
        seed: seed of the moments.
        folder: an empty folder for corpus and runs.

    Raises:
        KillError: a run did not end as the uninterrupted one, or lost something.
    """
    rng, tally = random.Random(seed), Tally()
    corpus = folder / "corpus"
    write_corpus(few_sentences(), corpus, name="killed")
    whole = {}
    for noise in ("seeded", "secure"):
        out = folder / f"whole-{noise}"
        began = time.monotonic()
        code = wait(fork(words_of_run(corpus, out, noise), out, None))
        import_all(out)
        whole[noise] = (out, time.monotonic() - began, _steps(out))
        if code != 0:
            raise KillError(f"the uninterrupted run ended with exit code {code}: {output_of(out)}")
    while tally.kills.total() < kills:
        noise = "secure" if tally.runs % 4 == 3 else "seeded"
        tally.runs += 1
        _kill_one(corpus, folder / f"run-{tally.runs}", noise, whole[noise], rng, tally, kills)
    return tally.lines()


def _kill_one(
    corpus: Path, out: Path, noise: str, whole: tuple[Path, float, int], rng: random.Random, tally: Tally, kills: int
) -> None:
    """Kill and resume one run until it ends, and compare it with the reference (folder, seconds, number of syncs)."""
    reference, seconds, steps = whole
    words, last_round = words_of_run(corpus, out, noise), 0
    while True:
        moment = rng.choice(MOMENTS) if tally.kills.total() < kills else None
        arm = None if moment in (None, "time") else _trigger(moment, rng, steps)
        process = fork(words, out, arm)
        if moment == "time":
            time.sleep(rng.uniform(0, seconds))
            os.kill(process, signal.SIGKILL)
        code = wait(process)
        if code == 0 or (code == 2 and output_of(out).endswith(f"the run is finished ({ROUNDS} rounds)\n")):
            break
        if code != -signal.SIGKILL:
            raise KillError(f"{out}: ended with exit code {code}: {output_of(out)}")
        tally.kills[str(moment)] += 1
        if arm is not None:
            tally.in_file[_file_at_kill(out)] += 1
        if not check_remains(out, noise):
            tally.before_the_record += 1
            check_refused(out)
            shutil.rmtree(out, ignore_errors=True)
            sibling(out, "witness").unlink(missing_ok=True)
            continue
        checkpointed = _checkpointed_round(out)
        if checkpointed < last_round:
            raise KillError(f"{out}: the checkpoint went back from round {last_round} to {checkpointed}")
        last_round = checkpointed
        words = ["resume", str(out), "--quiet", "--json"]
    compare(reference, out, noise)
    releases = Counter(number for number, _ in releases_of(out))
    tally.releases_repeated += sum(releases.values()) - len(releases)
    tally.rounds_repeated += sum(count > 1 for count in releases.values())


def _trigger(moment: str, rng: random.Random, steps: int) -> Callable[[Path], None]:
    """Return a function that makes a process kill itself during a write, at a moment of ``rng``.

    Args:
        moment: one of :data:`MOMENTS`, but ``time``, at which the parent kills it.
        rng: the stream of the moments.
        steps: syncs in an uninterrupted run.
    """
    part, share = rng.choice(("checkpoint", "ledger", "")), rng.random()
    number = rng.randrange(ROUNDS if part else steps)

    def arm(out: Path) -> None:
        _die_at(out, moment, number, share, part)

    return arm


# --- in the process to be killed -------------------------------------------------------------------------------------


def fork(words: list[str], out: Path, arm: Callable[[Path], None] | None) -> int:
    """Run ``fl-sim`` in a forked process; return its id.

    Args:
        words: arguments of ``fl-sim``.
        out: the run folder; the process's output goes to a file beside it.
        arm: called with ``out`` in the new process, to make it kill itself; without it, syncs are counted.
    """
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        output = os.open(sibling(out, "output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # instead of pytest's capture
        plots.write_run_plots = lambda run: None  # plots take longer than the run
        _record_releases(out)
        if arm is not None:
            arm(out)
        else:
            _count_steps(out)
        code = fl_sim(words)
        if arm is None:
            sibling(out, "modules").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(code)


def import_all(out: Path) -> None:
    """Import the modules that a run imported, so that later forks have them."""
    for name in sibling(out, "modules").read_text().splitlines():
        with suppress(Exception):
            importlib.import_module(name)


def _record_releases(out: Path) -> None:
    """Write the round and a hash of every release to the witness file, as soon as the noise is added."""
    add = BoundedSumStrategy._add_noise
    witness = os.open(sibling(out, "witness"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def recording(self: Any, server_round: int, total: Any, *others: Any) -> float:
        norm = add(self, server_round, total, *others)
        digest = hashlib.sha256(np.ascontiguousarray(total).tobytes()).hexdigest()
        os.write(witness, f"{server_round} {digest}\n".encode())
        return norm

    BoundedSumStrategy._add_noise = recording  # type: ignore[method-assign]


def _count_steps(out: Path) -> None:
    """Count the syncs of a run, from which the moments of later kills are drawn."""
    fsync, steps = os.fsync, sibling(out, "steps")

    def counting(descriptor: int) -> None:
        fsync(descriptor)
        with steps.open("a") as file:
            file.write("x")

    os.fsync = counting


def _die_at(out: Path, moment: str, number: int, share: float, part: str) -> None:
    """Make this process kill itself at one of its syncs.

    Args:
        out: the run folder.
        moment: ``cut`` (during the write), ``rename`` (before the rename after it) or ``renamed`` (after that).
        number: the sync, counted from 0, of files and folders whose path contains ``part``.
        share: share of the unsynced bytes that ``cut`` keeps.
        part: part of a path; empty for all.
    """
    fsync, syncs_left = os.fsync, [number]
    synced_to = {path.name: path.read_bytes().rfind(b"\n") + 1 for path in out.glob("*.jsonl")}

    def die(name: str) -> NoReturn:
        sibling(out, "killed-at").write_text(name)
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit

    def sync_or_die(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        syncs_left[0] -= part in f"{path.parent.name}/{path.name}"
        if syncs_left[0] < 0 and moment == "cut" and path.is_file():
            _cut(path, share, synced_to.get(path.name, 0))
            die(_final_name(path.name))
        if syncs_left[0] < 0 and moment == "renamed" and path.is_dir():
            die(f"{path.name.partition('-')[0]} (folder)")
        fsync(descriptor)
        if path.suffix == ".jsonl":
            synced_to[path.name] = path.stat().st_size
        if syncs_left[0] < 0 and moment == "rename" and path.is_file():
            die(_final_name(path.name))

    os.fsync = sync_or_die


def _cut(path: Path, share: float, synced_to: int) -> None:
    """Keep only a share of the bytes written to ``path`` since its last sync (at ``synced_to`` bytes)."""
    size = path.stat().st_size
    first = min(synced_to, size)
    os.truncate(path, first + int(share * (size - first)))


def _final_name(name: str) -> str:
    """Return ``latest.safetensors`` for ``.latest.safetensors.1a2b3c4d.tmp``."""
    parts = name.strip(".").split(".")
    return ".".join(part for part in parts if part != "tmp" and not (len(part) == 8 and part not in "manifest"))


# --- checks ----------------------------------------------------------------------------------------------------------


def check_remains(out: Path, noise: str) -> bool:
    """Return whether a killed run can be resumed.

    Raises:
        KillError: it released something that its ledger lacks, or its checkpoint is damaged.
    """
    released = releases_of(out)
    has_record = (out / HEAD_FILE).exists() and (out / "config.json").exists()
    if not has_record and released:
        raise KillError(f"{out}: released {released} without a ledger")
    if not has_record:
        return False
    entries = Counter(entry.round for entry in Ledger.read(out).entries)
    releases = Counter(number for number, _ in released)
    if noise == "seeded":
        hashes = {number: {digest for n, digest in released if n == number} for number in releases}
        if any(len(digests) > 1 for digests in hashes.values()):
            raise KillError(f"{out}: a round was released with different noise: {hashes}")
        missing = releases.keys() - entries.keys()
    else:
        missing = {number for number in releases if entries[number] < releases[number]}
    if missing:
        raise KillError(f"{out}: the ledger lacks releases of rounds {sorted(missing)}")
    try:
        _checkpointed_round(out)
    except ResultsError as error:
        raise KillError(f"{out}: the checkpoint was lost: {error}") from error
    return True


def _checkpointed_round(out: Path) -> int:
    checkpoint = Checkpoint.read(out / "checkpoint")
    return 0 if checkpoint is None else checkpoint.server_round


def check_refused(out: Path) -> None:
    """Check that a folder without a run's record is refused in one line."""
    if out.exists():
        code = wait(fork(["resume", str(out), "--quiet"], out, None))
        if code != 2 or output_of(out).count("\n") != 1:
            raise KillError(f"{out}: a run without a record was not refused in one line: {code}, {output_of(out)}")


def compare(reference: Path, out: Path, noise: str) -> None:
    """Check that a killed and resumed run ended as the uninterrupted one."""
    resumed, whole = RunFolder.open(out), RunFolder.open(reference)
    entries = Ledger.read(out).entries
    result = resumed.result or {}
    if result.get("releases") != len(entries) or [t.name for t in out.rglob(".*.tmp")]:
        raise KillError(f"{out}: {result.get('releases')} releases, {len(entries)} in the ledger; or files left over")
    if noise == "secure":
        return
    states = [Checkpoint.read(run.checkpoint_dir) for run in (resumed, whole)]
    vectors = [state.vector.tobytes() for state in states if state is not None]
    rows = [_without(run.metrics(), "seconds") for run in (resumed, whole)]
    results = [{k: v for k, v in (run.result or {}).items() if k != "ledger"} for run in (resumed, whole)]
    weights = [(run.model_dir / "model.safetensors").read_bytes() for run in (resumed, whole)]
    if vectors[0] != vectors[1] or rows[0] != rows[1] or repr(results[0]) != repr(results[1]) or len(set(weights)) > 1:
        raise KillError(f"{out}: differs from {reference}")


def _without(metrics: Any, column: str) -> str:
    return str(metrics.drop(columns=column).to_json(double_precision=15))


def releases_of(out: Path) -> list[tuple[int, str]]:
    file = sibling(out, "witness")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(number), digest) for number, digest in (line.split() for line in lines)]


def sibling(out: Path, name: str) -> Path:
    return out.with_name(f"{out.name}.{name}")


def output_of(out: Path) -> str:
    return sibling(out, "output").read_text(errors="replace")


def _file_at_kill(out: Path) -> str:
    return sibling(out, "killed-at").read_text()


def _steps(out: Path) -> int:
    return len(sibling(out, "steps").read_text())


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def words_of_run(corpus: Path, out: Path, noise: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    secure = ["--secure-noise"] if noise == "secure" else []
    return ["run", "--corpus", str(corpus), "--out", str(out), "--quiet", "--json", *secure, *settings]


def few_sentences() -> Iterator[Sentence]:
    for split in ("train", "validation"):
        for user in range(6):
            for number in range(3):
                mentions = (Mention(0, 3, "PER"),) if number < 2 else ()
                yield Sentence(split, f"user {user}", f"{'Ada' if mentions else 'Rain'} saw {number} boats.", mentions)


# --- on Ray ----------------------------------------------------------------------------------------------------------
# These take and raise what kill() does; the folder may have runs of the others in it.


def kill_on_ray(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill whole processes on Ray at a random time of their rounds, resume and compare them; return a line to print."""
    rng = random.Random(seed)
    corpus, whole, seconds = _whole_on_ray(folder, ROUNDS)
    killed = runs = 0
    while killed < kills:
        runs += 1
        out = folder / f"ray-{runs}"
        words = _words_on_ray(corpus, out, ROUNDS)
        while True:
            process = _command(words, out)
            if killed < kills:
                _wait_for_rounds(out, (_checkpointed_round(out) + 1) * (out / "checkpoint").exists(), process)
                time.sleep(rng.uniform(0, seconds))
                process.kill()
            if process.wait() not in (0, -signal.SIGKILL):
                raise KillError(f"{out}: ended with exit code {process.returncode}")
            if (out / "result.json").exists():  # written last; a kill after it hits Ray during its shutdown
                break
            killed += 1
            words = ["resume", str(out), "--quiet", "--json"]
        compare(whole, out, "seeded")
    return [f"{killed} kills in {runs} runs on Ray: all ended with the model, metrics and ε of the uninterrupted run"]


def kill_workers(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill workers of runs on Ray, one at a time; the run must end by itself as the undisturbed one."""
    rng, killed, runs = random.Random(seed), 0, 0
    corpus, whole, seconds = _whole_on_ray(folder, LONG_ROUNDS)
    while killed < kills:
        runs += 1
        out = folder / f"workers-{runs}"
        process = _command(_words_on_ray(corpus, out, LONG_ROUNDS), out)
        _wait_for_rounds(out, 0, process)
        while killed < kills and process.poll() is None:
            workers = _processes_below(process.pid, "ray::ClientAppActor")
            if len(workers) == WORKERS:
                time.sleep(rng.uniform(0, seconds / LONG_ROUNDS))
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    killed += 1
            time.sleep(0.2)
        _wait_for_success(process, out)
        compare(whole, out, "seeded")
    return [f"{killed} kills of workers in {runs} runs on Ray: all ended by themselves as the undisturbed run"]


def kill_raylets(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill the raylet of runs on Ray, and with it all workers; continued, each must end as the undisturbed one."""
    rng, ends = random.Random(seed), Counter[int]()
    corpus, whole, seconds = _whole_on_ray(folder, LONG_ROUNDS)
    runs = 0
    while ends.total() < kills:
        runs += 1
        out = folder / f"raylet-{runs}"
        process = _command(_words_on_ray(corpus, out, LONG_ROUNDS), out)
        _wait_for_rounds(out, 1, process)
        time.sleep(rng.uniform(0, 0.8 * seconds))
        raylets = _processes_below(process.pid, "/raylet/raylet")
        for raylet in raylets:
            os.kill(raylet, signal.SIGKILL)
        process.wait()
        if raylets:  # it was not too late
            ends[process.returncode] += 1
        if not (out / "result.json").exists():
            if process.returncode not in (1, 2):
                raise KillError(f"{out}: ended with exit code {process.returncode}: {output_of(out)}")
            _wait_for_success(_command(["resume", str(out), "--quiet", "--json"], out), out)
        compare(whole, out, "seeded")
    how = ", ".join(f"{code}: {count}" for code, count in sorted(ends.items()))
    return [f"{kills} kills of a raylet (exit codes {how}): continued, all ended as the undisturbed run"]


def _whole_on_ray(folder: Path, rounds: int) -> tuple[Path, Path, float]:
    """Return a corpus, an undisturbed run on Ray, and the seconds of its rounds."""
    corpus, out = folder / "ray-corpus", folder / f"ray-whole-{rounds}"
    if not corpus.exists():
        write_corpus(few_sentences(), corpus, name="killed")
    process = _command(_words_on_ray(corpus, out, rounds), out)
    _wait_for_rounds(out, 0, process)
    began = time.monotonic()
    _wait_for_rounds(out, rounds, process)
    seconds = time.monotonic() - began
    _wait_for_success(process, out)
    return corpus, out, seconds


def _words_on_ray(corpus: Path, out: Path, rounds: int) -> list[str]:
    ray = {"engine.name=inline": "engine.name=ray", f"rounds={ROUNDS}": f"rounds={rounds}"}
    words = [ray.get(word, word) for word in words_of_run(corpus, out, "seeded")]
    return [*words, "--set", f"engine.nodes={WORKERS}", "--set", f"engine.num_cpus={WORKERS}"]


def _command(words: list[str], out: Path) -> subprocess.Popen[bytes]:
    """Start ``fl-sim``; its output goes to a file beside ``out``."""
    with sibling(out, "output").open("wb") as output:
        return subprocess.Popen([sys.executable, "-m", "fl_sim.cli.main", *words], stdout=output, stderr=output)


def _wait_for_success(process: subprocess.Popen[bytes], out: Path) -> None:
    if process.wait() != 0:
        raise KillError(f"{out}: ended with exit code {process.returncode}: {output_of(out)}")


def _processes_below(parent: int, named: str) -> list[int]:
    """Return the processes below ``parent`` whose command line contains ``named``."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(parent).children(recursive=True):
            with suppress(psutil.Error):  # it ended meanwhile
                found += [process.pid] if named in " ".join(process.cmdline()) else []
    return found


def _wait_for_rounds(out: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > number):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
