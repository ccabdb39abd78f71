"""Find the run without privacy that a private run is measured against: its noiseless twin, in a folder beside it.

>>> share_of_the_way("perplexity", start=200.0, end=200.0, twin=50.0)
0.0
>>> share_of_the_way("error", start=0.5, end=0.25, twin=0.0)
0.5
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fl_sim.storage.run_folder import ResultsError, RunFolder, numbers_of, utility_of

NOISELESS = "noiseless"
_EQUAL = math.log(1.1)  # the distance up to which two runs count as equally long


@dataclass(frozen=True, slots=True)
class WithoutPrivacy:
    """A finished noiseless run with the corpus, the initial model and the held-out text of another run.

    Attributes:
        run: the name of its folder.
        final: its held-out perplexity or error at the end.
        bits_per_byte: the same in bits per byte; None for a classifier.
        rounds: how many it had.
        sentences: that it read in a round, on average.
        as_long: whether it read, or was to read, as many sentences in all as the other run, to a tenth.
        share: of the way from the start to ``final`` that the other run came; None if that has no meaning: the twin is
            shorter or longer, or is no better than the start.
    """

    run: str
    final: float
    bits_per_byte: float | None
    rounds: int
    sentences: float
    as_long: bool
    share: float | None


def share_of_the_way(metric: str, start: float, end: float, twin: float) -> float | None:
    """Return which share of the way from the start to its twin's end a run came, in log perplexity or in error.

    None if one of them is not finite, or the twin ended no better than the start.
    """
    if not all(map(math.isfinite, (start, end, twin))):
        return None
    measure = math.log if metric == "perplexity" else float
    whole = measure(start) - measure(twin)
    return (measure(start) - measure(end)) / whole if whole > 0 else None


def find_without_privacy(run: RunFolder) -> WithoutPrivacy | None:
    """Return the noiseless run beside ``run`` of the most similar number of sentences; None if there is none.

    It trained the same model from the same start on the same corpus, and was measured on the same held-out text.
    """
    metric = utility_of(run).column
    measured, read = run.measured(metric), _sentences(run)
    if not measured or not read or run.setting("strategy") == NOISELESS:
        return None
    beside = {other: _sentences(other) for other in _beside(run, metric, measured[0])}
    by_distance = {
        other: min(abs(math.log(number / read)) for number in (sentences, _expected(other)))
        for other, sentences in beside.items()
        if sentences
    }
    if not by_distance:
        return None
    as_trained = _how_it_is_trained(run)
    twin = min(
        by_distance,
        key=lambda other: (by_distance[other] > _EQUAL, _how_it_is_trained(other) != as_trained, by_distance[other]),
    )
    final, rounds = twin.measured(metric)[-1], twin.last_round or 1
    as_long = by_distance[twin] <= _EQUAL
    share = share_of_the_way(metric, measured[0], measured[-1], final) if as_long else None
    bits = numbers_of(twin.result or {}).get("bits_per_byte")
    return WithoutPrivacy(twin.path.name, final, bits, rounds, beside[twin] / rounds, as_long, share)


def _beside(run: RunFolder, metric: str, start: float) -> Iterator[RunFolder]:
    """Yield the finished noiseless runs of the same corpus, model and held-out text in the folder of ``run``."""
    trained = _what_is_trained(run)
    for folder in sorted(run.path.absolute().parent.iterdir()):
        try:
            if f'"{NOISELESS}"' not in (folder / "config.json").read_text("utf-8"):
                continue
            other = RunFolder.open(folder)
            is_noiseless = other.setting("strategy") == NOISELESS and other.finished and not other.diverged
            if not is_noiseless or _what_is_trained(other) != trained:
                continue
            values = other.measured(metric)
        except (OSError, UnicodeDecodeError, ResultsError):
            continue  # no run, or one that is being written: other reports name what is wrong with it
        if values and math.isclose(values[0], start, rel_tol=1e-3):
            yield other


def _what_is_trained(run: RunFolder) -> dict[str, object]:
    """Return the corpus, the model, the task and the held-out text of a run, as its configuration has them."""
    model = run.section("run", "model")
    corpus = run.section("run", "corpus")
    return {
        "fingerprint": run.fingerprint,
        "splits": [corpus.get("train_split"), corpus.get("held_out_split")],
        "held out": run.section("run", "evaluation").get("max_sentences"),
        "task": run.section("run").get("task"),
        "model": {name: value for name, value in model.items() if name not in ("device", "precision")},
    }


def _how_it_is_trained(run: RunFolder) -> list[object]:
    """Return the settings that a run shares with a twin that was made for it."""
    configured = run.section("run")
    return [configured.get(name) for name in ("seed", "server", "averaging", "local")]


def _sentences(run: RunFolder) -> float:
    """Return how many sentences a run has read in all its rounds; 0 if it did not record them."""
    return sum(run.measured("cohort_sentences"))


def _expected(noiseless: RunFolder) -> float:
    """Return how many sentences its settings let a run without bounds read; infinity if it samples entities.

    Of a few sentences a round, a tenth more or fewer is chance.
    """
    q_u, q_e, q_s = (noiseless.setting(name) for name in ("q_u", "q_e", "q_s"))
    size = ((noiseless.result or {}).get("corpus") or {}).get("sentences", 0)
    return noiseless.last_round * q_u * q_s * size if q_e == 1 and size else math.inf
