"""Let every write, sync and rename of runs and preparations fail, one at a time, and check that nothing is lost.

    python benchmarks/inject_faults.py                 # all of them: a thousand runs, about half an hour on a free core
    python benchmarks/inject_faults.py --every 10      # each tenth

A library that is preloaded (faulty_storage.c, compiled here with ``cc``) counts the calls that write, sync, truncate,
rename or create below the folder of a run, whatever library makes them, and lets the n-th fail: with EIO once, or with
ENOSPC from then on, as a full disk does. The command must then end in one line with exit code 2, or go on as if nothing
had happened. Continued without the fault, or begun again where it left nothing, it must end with the bytes of the one
that nothing happened to; and at every moment the ledger has every release that a witness saw. With ``clock``, a run and
a preparation see a clock that jumps by years whenever they look at it.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kill_runs
from benchmarks.kill_runs import KillError, fork, output_of, sibling, wait
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.storage.checkpoint import Checkpoint

SOURCE = Path(__file__).with_name("faulty_storage.c")
FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
WHAT = ["clock", "run", "resume", "prepare"]
ROWS = 40
YEARS = 3 * 365 * 86_400


@dataclass
class Tally:
    """Counts of the faults of one command.

    Attributes:
        operations: calls that an undisturbed command makes.
        faults: calls that failed, by the kind of call.
        refused: commands that ended in one line with exit code 2.
        unharmed: commands that ended as if nothing had happened.
        begun_again: commands that left nothing to continue.
        problems: faults that a command did not survive as it must.
    """

    operations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    unharmed: int = 0
    begun_again: int = 0
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Collect the problem of the block, so that the other faults are injected, too."""
        try:
            yield
        except KillError as error:
            self.problems.append(str(error))

    def checked(self) -> Tally:
        """Return the tally; raise KillError with all problems if there are any."""
        if self.problems:
            raise KillError("\n".join([f"{len(self.problems)} of {self.faults.total()} faults:", *self.problems]))
        return self

    def line(self, name: str) -> str:
        """Return the counts as a line to print."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"{name}: {self.operations} operations; {self.faults.total()} faults ({kinds}): {self.refused} refused in "
            f"one line, {self.unharmed} unharmed, {self.begun_again} begun again; all ended as the one without a fault"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="inject each n-th fault only")
    parser.add_argument("--what", choices=WHAT, nargs="*", default=WHAT)
    args = parser.parse_args()
    if "FL_SIM_FAULTS" not in os.environ:
        sys.exit(preloaded(sys.argv))
    with tempfile.TemporaryDirectory() as folder:
        for line in inject(args.what, args.every, Path(folder)):
            print(line, flush=True)


def preloaded(words: list[str]) -> int:
    """Run the Python program ``words`` with the library that lets calls fail; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "faulty_storage.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
        plain = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment = os.environ | plain | {"LD_PRELOAD": str(library), "FL_SIM_FAULTS": str(library)}
        return subprocess.run([sys.executable, *words], env=environment, check=False).returncode


def inject(what: list[str], every: int, folder: Path) -> Iterator[str]:
    """Inject the faults of each command in ``what``, each ``every``-th; yield a line to print per command.

    Raises:
        KillError: a command did not survive a fault as it must.
    """
    corpus = folder / "corpus"
    write_corpus(kill_runs.few_sentences(), corpus, name="faults")
    runs = _Runs(corpus, folder)
    if "clock" in what:
        yield runs.with_jumping_clock()
        yield _prepare_with_jumping_clock(folder / "clock")
    if "run" in what:
        for noise in ("seeded", "secure"):
            yield runs.start(noise, every if noise == "seeded" else 4 * every).line(f"run, {noise} noise")
    if "resume" in what:
        yield runs.go_on(every).line("resume")
    if "prepare" in what:
        yield _prepare(folder, every).line("prepare")


class _Runs:
    """Runs with faults, compared with one without."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        self._corpus, self._folder = corpus, folder
        self._whole = {noise: folder / f"whole-{noise}" for noise in ("seeded", "secure")}
        for noise, out in self._whole.items():
            if wait(fork(self._words(out, noise), out, None)) != 0:
                raise KillError(f"{out}: an undisturbed run failed: {output_of(out)}")
            kill_runs.import_all(out)

    def start(self, noise: str, every: int) -> Tally:
        """Let the operations of a run fail, from its start."""
        return self._each(noise, every, self._words, lambda out: None)

    def with_jumping_clock(self) -> str:
        """Make a run whose clock jumps; return a line to print."""
        out = self._folder / "jumping"
        if wait(fork(self._words(out, "seeded"), out, _jump)) != 0:
            raise KillError(f"{out}: failed: {output_of(out)}")
        kill_runs.compare(self._whole["seeded"], out, "seeded")
        return "run, a clock that jumps: ended as the one without"

    def go_on(self, every: int) -> Tally:
        """Let the operations of a resumed run fail, after its second round."""
        stopped = self._folder / "stopped"
        if wait(fork(self._words(stopped, "seeded"), stopped, _stop_after_two_rounds)) != 130:
            raise KillError(f"{stopped}: did not stop: {output_of(stopped)}")

        def copy(out: Path) -> None:
            shutil.copytree(stopped, out)
            shutil.copy(sibling(stopped, "witness"), sibling(out, "witness"))

        return self._each("seeded", every, lambda out, noise: ["resume", str(out), "--quiet", "--json"], copy)

    def _each(
        self, noise: str, every: int, words: Callable[[Path, str], list[str]], ready: Callable[[Path], None]
    ) -> Tally:
        tally = Tally()
        out = self._folder / "counted"
        ready(out)
        code = wait(fork(words(out, noise), out, _arm(0, 0, out)))
        tally.operations = _outcome(out)[0]
        if code != 0:
            raise KillError(f"{out}: an undisturbed run failed: {output_of(out)}")
        _clear(out)
        for name, number in FAULTS.items():
            for at in range(1, tally.operations + 1, every):
                out = self._folder / f"{name}-{at}"
                ready(out)
                with tally.noticing():
                    code = wait(fork(words(out, noise), out, _arm(at, number, out)))
                    _count(tally, code, out)
                    self._end(out, noise, code, tally)
                _clear(out)
        return tally.checked()

    def _end(self, out: Path, noise: str, code: int, tally: Tally) -> None:
        """Continue a run after its fault, or begin it again, and compare it with the undisturbed one."""
        words = ["resume", str(out), "--quiet", "--json"]
        if not kill_runs.check_remains(out, noise):
            tally.begun_again += 1
            kill_runs.check_refused(out)
            shutil.rmtree(out, ignore_errors=True)
            words = self._words(out, noise)
        if code != 0 and wait(fork(words, out, _arm(0, 0, out))) != 0 and "is finished" not in output_of(out):
            raise KillError(f"{out}: cannot be continued: {output_of(out)}")
        kill_runs.compare(self._whole[noise], out, noise)

    def _words(self, out: Path, noise: str) -> list[str]:
        return kill_runs.words_of_run(self._corpus, out, noise)


def _prepare_with_jumping_clock(folder: Path) -> str:
    """Prepare a corpus with a clock that jumps; return a line to print."""
    words, places = _preparation(folder), (folder / "whole", folder / "jumping")
    for place, arm in zip(places, (_arm(0, 0, places[0]), _jump), strict=True):
        place.mkdir()
        if wait(fork(words(place), place, arm)) != 0:
            raise KillError(f"{place}: failed: {output_of(place)}")
    if _contents(places[0]) != _contents(places[1]):
        raise KillError(f"{places[1]}: differs from a preparation without jumps")
    return "prepare, a clock that jumps: ended as the one without"


def _preparation(folder: Path) -> Callable[[Path], list[str]]:
    """Return a function that gives the words of ``fl-sim prepare`` for a place."""
    folder.mkdir(exist_ok=True)
    source = folder / "rows.jsonl"
    rows = ({"user": f"user {n % 5}", "text": f"Ada Smith saw {n} boats in London."} for n in range(ROWS))
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(source, (1e9, 1e9))
    columns = ["--source", str(source), "--text-column", "text", "--user-column", "user", "--tagger", "rules"]
    return lambda place: ["prepare", "jsonl", *columns, "--out", str(place / "corpus")]


def _prepare(folder: Path, every: int) -> Tally:
    """Let the operations of a preparation fail."""
    words, tally = _preparation(folder), Tally()
    whole = folder / "prepared"
    whole.mkdir()
    if wait(fork(words(whole), whole, _arm(0, 0, whole))) != 0:
        raise KillError(f"an undisturbed preparation failed: {output_of(whole)}")
    tally.operations = _outcome(whole)[0]
    for name, number in FAULTS.items():
        for at in range(1, tally.operations + 1, every):
            place = folder / f"prepared-{name}-{at}"
            place.mkdir()
            with tally.noticing():
                code = wait(fork(words(place), place, _arm(at, number, place)))
                _count(tally, code, place)
                tally.begun_again += not (place / "corpus").exists()
                if wait(fork(words(place), place, _arm(0, 0, place))) != 0:
                    raise KillError(f"{place}: cannot be prepared any more: {output_of(place)}")
                if _contents(place) != _contents(whole):
                    raise KillError(f"{place}: differs from a preparation without a fault")
            _clear(place)
    return tally.checked()


def _contents(place: Path) -> dict[str, bytes]:
    files = (path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def _count(tally: Tally, code: int, out: Path) -> None:
    """Count how a command with a fault ended.

    Raises:
        KillError: neither well nor in one line with exit code 2, or the fault did not happen.
    """
    _, failed = _outcome(out)
    printed = output_of(out)
    if code not in (0, 2) or (code == 2 and printed.count("\n") != 1):
        raise KillError(f"{out}: {failed} failed, and the command ended with exit code {code}: {printed}")
    tally.faults[failed.partition(" ")[0] or "none"] += 1
    tally.refused += code == 2
    tally.unharmed += code == 0


# --- in the process with the fault -----------------------------------------------------------------------------------


def _arm(number: int, error: int, folder: Path) -> Callable[[Path], None]:
    """Return a function that lets operation ``number`` below ``folder`` fail; 0 only counts them."""

    def arm(out: Path) -> None:
        library = ctypes.CDLL(os.environ["FL_SIM_FAULTS"])
        library.failed_operation.restype = ctypes.c_char_p
        library.operations.restype = ctypes.c_long
        leave = os._exit

        def leave_with_counts(code: int) -> None:
            count, failed = library.operations(), library.failed_operation().decode()
            library.arm(b"", ctypes.c_long(0), 0)
            sibling(folder, "operations").write_text(f"{count} {failed}")
            leave(code)

        os._exit = leave_with_counts  # type: ignore[assignment]
        library.arm(str(folder).encode(), ctypes.c_long(number), error)

    return arm


def _jump(out: Path) -> None:
    """Make the clock of the day jump whenever the process looks at it."""
    ctypes.CDLL(os.environ["FL_SIM_FAULTS"]).jump(ctypes.c_long(YEARS))


def _stop_after_two_rounds(out: Path) -> None:
    """Make the process stop as Ctrl-C does, once its second checkpoint is written."""
    write = Checkpoint.write

    def write_and_stop(self: Checkpoint, folder: Path) -> None:
        write(self, folder)
        if self.server_round == 1:  # one more round ends
            signal.raise_signal(signal.SIGINT)

    Checkpoint.write = write_and_stop  # type: ignore[method-assign]


def _outcome(out: Path) -> tuple[int, str]:
    """Return the number of operations of a command, and which one failed."""
    count, _, failed = sibling(out, "operations").read_text().partition(" ")
    return int(count), failed


def _clear(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for path in out.parent.glob(f"{out.name}.*"):
        path.unlink()


if __name__ == "__main__":
    main()
