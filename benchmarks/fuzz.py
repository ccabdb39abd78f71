"""Feed hostile and broken input to fl_sim: configurations, corpora, ledgers, checkpoints and Flower messages.

    python benchmarks/fuzz.py --examples 1000

Hypothesis generates this many inputs of each kind. fl_sim must accept each of them or refuse it in one line. The
program fails, and shows the input, on an unforeseen exception, on 60 seconds of processor time for one input, and on a
wrong ε. An ε is wrong if it is not a number, exceeds the ε of a guarantee that covers more, differs from
dp_accounting's, or comes from an altered ledger that was not refused.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from safetensors.numpy import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kill_runs import few_sentences
from fl_sim.cli.main import _is_foreseen
from fl_sim.cli.main import main as fl_sim
from fl_sim.clients.client_app import app as client_app
from fl_sim.config import RunConfig, run_keys
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import MANIFEST_FILE, fingerprint_of, record_of
from fl_sim.engines.engine import _identity, run_inline
from fl_sim.engines.grids import InlineGrid
from fl_sim.experiments.plan.guarantees import NOTHING_EARLIER, EpsilonCurves, Units
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.files import sha256_of_json
from fl_sim.reporting import plots
from fl_sim.storage import checkpoint as checkpoints
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE, Ledger, ReleaseRecord
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TRAIN_ACTION, TRAIN_MESSAGE, TrainReply, TrainRequest, vector_to_arrays
from fl_sim.strategies.postprocessing import IterateAverage, ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.published import Published
from fl_sim.strategies.uedp import UserEntityDP
from fl_sim.strategies.user_level import UserLevelDP

SECONDS = 60
SLACK = 1 + 1e-3  # between two results of one accountant
TOLERANCE = 0.03  # between our ε and dp_accounting's
SIZE, NODES, USERS = 6, 3, 9

Check = Callable[[Any], str]


class WrongError(AssertionError):
    """fl_sim did something that it must not do."""


# A cache: computing ε after every round took most of the time of an input. Plots took most of the rest, and go.
_guarantees: dict[str, EpsilonCurves] = {}


def _cached_guarantees(
    plan: PrivacyPlan,
    units: Mapping[str, Units],
    earlier: Earlier = NOTHING_EARLIER,
    compute: Callable[..., EpsilonCurves] = EpsilonCurves.of,
) -> EpsilonCurves:
    """Return :meth:`EpsilonCurves.of` of the arguments, computed once per plan and protected units."""
    key = repr((plan, units, earlier))
    if key not in _guarantees:
        _guarantees[key] = compute(plan, units, earlier)
    return _guarantees[key]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--only", choices=sorted(KINDS), nargs="*", default=sorted(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.disable()
    for kind in args.only:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            outcomes = fuzz(kind, args.examples, Path(folder), args.seed)
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{kind}: {outcomes.total():,} inputs, {counts}; {time.process_time() - began:.0f} s of processor time")


def fuzz(kind: str, examples: int, folder: Path, first: int = 0) -> Counter[str]:
    """Return how many inputs of a kind were ``taken`` (accepted) and ``refused``.

    Args:
        kind: one of :data:`KINDS`.
        examples: number of inputs.
        folder: an empty folder.
        first: seed of the inputs.

    Raises:
        Exception: what the first failing input raised, after Hypothesis has shrunk it.
    """
    inputs, prepare = KINDS[kind]
    check, outcomes = prepare(folder), Counter[str]()

    @mock.patch.object(EpsilonCurves, "of", _cached_guarantees)
    @mock.patch.object(plots, "write_run_plots", new=mock.Mock(return_value=None))
    def outcome_of(value: Any) -> str:
        return check(value)

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @seed(first)
    @given(inputs)
    def ends_well(value: Any) -> None:
        with _limit():
            outcomes[outcome_of(value)] += 1

    ends_well()
    return outcomes


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Raise :class:`WrongError` in the block if it takes more than :data:`SECONDS` of processor time."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise WrongError(f"hangs: {SECONDS} s of processor time")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def call(*words: str) -> tuple[str, str]:
    """Run ``fl-sim`` in this process; return ``taken`` or ``refused``, and its standard output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: Any = fl_sim(list(words))
        except SystemExit as stop:
            code = stop.code
    errors = err.getvalue()
    if code == 2 and errors.count("\n") == 1 and errors.startswith("fl-sim"):
        return "refused", ""
    if code != 0 or "Traceback" in errors:
        raise WrongError(f"exit code {code}: {errors}")
    return "taken", out.getvalue()


def _refusal(error: Exception) -> str:
    """Return ``refused`` for an error that fl_sim foresees; raise any other again."""
    if not _is_foreseen(error):
        raise error
    return "refused"


# --- configurations --------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 10, 1000, -1, 0.5, 0.05, 1e-5, 1e-300, 1e300, 2**63, 10**30, math.inf, -math.inf]),
    st.sampled_from([math.nan, 0.1, 0.9, 1.5, 4.0, 1e-9, 1e6]),
    st.floats(),
    st.floats(0, 1),
    st.integers(-5, 200),
)
TEXTS = st.one_of(
    st.sampled_from(["", "bundled", "uedp", "user_level", "published", "noiseless", "train", "validation", "corpus"]),
    st.sampled_from(
        ["unbounded", "user", "sentence", "adam", "sgd", "f_e", "as-coded", "cuda", "user_entity", "/", "~"]
    ),
    st.text(max_size=8),
)
VALUES = st.one_of(NUMBERS, NUMBERS, TEXTS, st.booleans(), st.lists(NUMBERS, max_size=2), st.lists(TEXTS, max_size=2))
KEYS = st.one_of(st.sampled_from(sorted(run_keys())), st.sampled_from(sorted(run_keys())), st.text(max_size=12))
PRIVACY = st.fixed_dictionaries(
    {"privacy.strategy": st.sampled_from(["uedp", "user_level", "published", "noiseless"])},
    optional={
        "rounds": st.integers(1, 60),
        "privacy.q_u": st.sampled_from([1.0, 0.5, 0.05, 1e-3]),
        "privacy.q_e": st.sampled_from([1.0, 0.5, 0.1]),
        "privacy.q_s": st.sampled_from([1.0, 0.5, 0.1]),
        "privacy.user_cap": st.sampled_from([1.0, 2.0, 3.5]),
        "privacy.noise_multiplier": st.sampled_from([0.5, 0.8, 1.0, 2.0, 4.0, 20.0]),
        "privacy.delta": st.sampled_from([1e-5, 1e-7, 1e-2]),
        "privacy.settings_from_corpus": st.sampled_from([True, True, False]),
        "privacy.user_sentences": st.sampled_from([1, 7, "corpus", "unbounded"]),
        "privacy.population": st.integers(6, 10**6),
    },
)
BOUNDS = st.sampled_from(
    [
        {},
        {"privacy.entity_bound": 3},
        {"privacy.entity_bound": "unbounded"},
        {"privacy.entity_bound": 10**6, "privacy.missed_mentions": 4},
        {"privacy.known": "graph", "privacy.entity_bound": 10, "privacy.entity_users": 2},
        {"privacy.entity_bound": 2, "privacy.round_counts": True},
        {"privacy.known": "nothing", "privacy.entity_users": 2},
        {"privacy.known": "nothing", "privacy.entity_bound": 3},
        {"privacy.known": "graph", "privacy.user_sentences": 2},
    ]
)
CONFIGURATIONS = st.tuples(
    st.one_of(st.just({}), st.tuples(PRIVACY, BOUNDS).map(lambda both: both[0] | both[1])),
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.integers(0, 9),
)


def configurations(folder: Path) -> Check:
    """Check that any configuration is refused or gives a plan with a right ε; a tenth of the accepted ones run."""
    corpus = folder / "corpus"
    write_corpus(few_sentences(), corpus, name="fuzzed")
    ownership = Corpus.open(corpus).ownership("train")

    def check(drawn: tuple[Mapping[str, Any], Mapping[str, Any], int]) -> str:
        base, changes, lot = drawn
        values = {**base, **changes}
        file = folder / "run.toml"
        file.write_text(
            "".join(f"{_quoted(key)} = {_toml(value)}\n" for key, value in values.items()), "utf-8", "replace"
        )
        try:
            config = RunConfig.load(str(file), {})
            planned = plan_run(config, ownership)
        except Exception as error:
            return _refusal(error)
        _check_epsilons(config, planned, thorough=lot < 3)
        if lot == 0 and "model.name" not in changes:
            _run(config, corpus, folder / "out")
        return "taken"

    return check


def _run(config: RunConfig, corpus: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    small = {"model.hidden": 8, "model.layers": 1, "model.heads": 1, "model.max_tokens": 16, "engine.name": "inline"}
    small |= {"rounds": min(config.rounds, 2), "corpus.path": str(corpus), "local.epochs": 1}
    given = config.model_dump(mode="json", exclude_defaults=True) | {"out": None}
    file = out.with_suffix(".json.toml")
    flat = {f"{s}.{k}": v for s, section in given.items() if isinstance(section, dict) for k, v in section.items()}
    flat |= {key: value for key, value in given.items() if value is not None and not isinstance(value, dict)}
    file.write_text("".join(f"{_quoted(k)} = {_toml(v)}\n" for k, v in (flat | small).items()))
    call("run", str(file), "--out", str(out), "--quiet", "--json")


def _check_epsilons(config: RunConfig, planned: Planned, *, thorough: bool) -> None:
    plan, at_end = planned.plan, planned.guarantees.after(planned.plan.rounds)
    for name, curve in planned.guarantees.curves.items():
        if np.isnan(curve).any() or (curve < 0).any() or (np.diff(curve[np.isfinite(curve)]) < -1e-9).any():
            raise WrongError(f"{name} is {curve}")
    if math.isinf(at_end["epsilon_user"]) and math.isinf(at_end["epsilon_user_entity_max"]):
        return
    ordered = [("epsilon_user", "epsilon_user_unbounded")] if not isinstance(plan.mechanism, Published) else []
    for entity_bound in ("median", "p95", "max"):
        entity, robust = f"epsilon_user_entity_{entity_bound}", f"epsilon_user_entity_robust_{entity_bound}"
        ordered += [("epsilon_user", entity), (entity, robust), (entity, "epsilon_any")]
    ordered += [("epsilon_any", "epsilon_any_robust")] if "epsilon_any_robust" in at_end else []
    for less, more in ordered:
        if at_end[less] > at_end[more] * SLACK + 1e-6:
            raise WrongError(f"{less} is {at_end[less]}, {more} is {at_end[more]}, of {plan}")
    sampled_gaussian = isinstance(plan.mechanism, UserEntityDP | UserLevelDP) and plan.mechanism.adaptive is None
    if thorough and sampled_gaussian and plan.rounds <= 200:
        _check_by_dp_accounting(plan, at_end["epsilon_user_unbounded"])


def _check_by_dp_accounting(plan: PrivacyPlan, epsilon: float) -> None:
    """Compare with dp_accounting: a user with any number of sentences is a sampled Gaussian of rate q_u and shift β."""
    mechanism = plan.mechanism
    if not 0.05 < epsilon < 50 or mechanism.noise_multiplier < 0.3:
        return
    event = dp_accounting.PoissonSampledDpEvent(
        mechanism.q_u, dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    )
    accountant = PLDAccountant(value_discretization_interval=1e-3).compose(event, plan.rounds)
    expected = accountant.get_epsilon(plan.delta)
    if not math.isclose(epsilon, expected, rel_tol=TOLERANCE, abs_tol=0.01):
        raise WrongError(f"epsilon_user_unbounded is {epsilon}, dp_accounting says {expected}, of {plan}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True).replace("\\ud", "\\\\ud") if text else '""'


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


# --- damage to files -------------------------------------------------------------------------------------------------

DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.floats(0, 1, exclude_max=True), st.just(0)),
    st.tuples(st.just("byte"), st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
    st.tuples(st.just("add"), st.just(0.0), st.integers(0, 255)),
    st.tuples(st.just("double"), st.floats(0, 1, exclude_max=True), st.integers(1, 100)),
    st.tuples(st.just("drop"), st.floats(0, 1, exclude_max=True), st.integers(1, 100)),
)


def damaged(content: bytes, damage: tuple[str, float, int]) -> bytes:
    """Return ``content`` with one damage: what, where (as a share of its length), and a number."""
    how, share, number = damage
    at = int(share * len(content))
    if how == "cut":
        return content[:at]
    if how == "add":
        return content + bytes([number])
    if how == "double":
        return content[: at + number] + content[at:]
    if how == "drop":
        return content[:at] + content[at + number :]
    changed = bytearray(content)
    if changed:
        changed[at] = number if how == "byte" else changed[at] ^ (1 << number)
    return bytes(changed)


CORPORA = st.tuples(st.floats(0, 1, exclude_max=True), DAMAGE, st.booleans())


def corpora(folder: Path) -> Check:
    """Check that a corpus with a damaged file is refused; with an adapted manifest it may also be a valid corpus."""
    sound, copy = folder / "sound", folder / "copy"
    write_corpus(few_sentences(), sound, name="fuzzed")
    names = sorted(path.name for path in sound.iterdir())
    before = Corpus.open(sound, verify=True)

    def check(drawn: tuple[float, tuple[str, float, int], bool]) -> str:
        share, damage, manifest_adapted = drawn
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sound, copy)
        file = copy / names[int(share * len(names))]
        changed = damaged(file.read_bytes(), damage)
        harmless = changed == file.read_bytes()
        file.write_bytes(changed)
        if manifest_adapted and file.name != MANIFEST_FILE:
            _adapt_manifest(copy, file)
        try:
            opened = Corpus.open(copy, verify=True)
            planned = plan_run(RunConfig(), opened.ownership("train"))
        except Exception as error:
            return _refusal(error)
        if not (manifest_adapted or harmless or opened.fingerprint == before.fingerprint):
            raise WrongError(f"{file.name} was damaged by {damage}, which was not noticed")
        _check_epsilons(RunConfig(), planned, thorough=False)
        outcome, _ = call("corpus", "stats", str(copy))
        _read_all(opened)
        return outcome

    return check


def _adapt_manifest(folder: Path, file: Path) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    records = Corpus.open(folder.with_name("sound")).manifest.files | {file.name: record_of(file)}
    manifest["files"] = {name: record.model_dump() for name, record in records.items()}
    manifest["fingerprint"] = fingerprint_of(records)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def _read_all(corpus: Corpus) -> None:
    try:
        for split in corpus.splits:
            corpus.texts(split).to_pylist()
            corpus.mentions(split)
            corpus.users(split)
            corpus.entities(split)
    except Exception as error:
        _refusal(error)


# --- ledgers ---------------------------------------------------------------------------------------------------------

FORGED = st.one_of(NUMBERS, TEXTS, st.none(), st.dictionaries(TEXTS, NUMBERS, max_size=2))
LEDGERS = st.one_of(
    st.tuples(st.sampled_from([LEDGER_FILE, HEAD_FILE]), DAMAGE),
    st.tuples(st.just("lines"), st.lists(st.integers(0, 4), max_size=6)),
    st.tuples(st.just("forged"), st.dictionaries(st.sampled_from(sorted(ReleaseRecord.__dataclass_fields__)), FORGED)),
)


def ledger_files(folder: Path) -> Check:
    """Check that an altered ledger is refused or states the ε of the original.

    A ledger forged with matching hashes must state a number.
    """
    sound, copy = folder / "sound", folder / "copy"
    sound.mkdir()
    mechanism = _plan(noise_multiplier=1.0, rounds=4).mechanism
    ledger = Ledger.create(sound)
    for number in range(1, 5):
        ledger.record_release(ReleaseRecord.of(mechanism, 0), number)
    words = ("account", "ledger", "--json", "--delta", "1e-5", "--user-sentences", "3")
    _, whole = call(*words, str(sound))
    expected = {**json.loads(whole), "ledger": None}

    def check(drawn: tuple[str, Any]) -> str:
        where, change = drawn
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sound, copy)
        if where == "forged":
            _forge(copy, change)
        elif where == "lines":
            lines = (copy / LEDGER_FILE).read_bytes().splitlines(keepends=True)
            (copy / LEDGER_FILE).write_bytes(b"".join(lines[i] for i in change))
        else:
            (copy / where).write_bytes(damaged((copy / where).read_bytes(), change))
        outcome, output = call(*words, str(copy))
        if outcome == "taken":
            stated = {**json.loads(output), "ledger": None}
            if where != "forged" and stated != expected:
                raise WrongError(f"an altered ledger states {stated}, not {expected}")
            epsilons = [stated[name] for name in ("epsilon_user", "epsilon_user_entity", "epsilon_user_entity_robust")]
            if not all(e is None or e == "inf" or e >= 0 for e in epsilons):
                raise WrongError(f"a forged ledger states {stated}")
        return outcome

    return check


def _forge(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change the last line of a ledger and all hashes to match, as a patient attacker could."""
    *lines, last = (folder / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    values = json.loads(last) | {k: "inf" if v == math.inf else v for k, v in changes.items()}
    values.pop("hash")
    last_hash = sha256_of_json(values)
    (folder / LEDGER_FILE).write_bytes(b"".join(lines) + json.dumps(values | {"hash": last_hash}).encode() + b"\n")
    head = json.loads((folder / HEAD_FILE).read_text())
    (folder / HEAD_FILE).write_text(json.dumps(head | {"last": last_hash}))


# --- checkpoints -----------------------------------------------------------------------------------------------------

METADATA = st.dictionaries(
    st.sampled_from(["round", "ledger", "folder", "sha256", "x"]), st.one_of(TEXTS, st.just("3"), st.just("{}"))
)
CHECKPOINTS = st.one_of(
    DAMAGE, st.tuples(st.just("forged"), METADATA, st.booleans()), st.tuples(st.just("bytes"), st.binary(max_size=64))
)


def checkpoint_files(folder: Path) -> Check:
    """Check that a damaged checkpoint is refused, so that only what was written is ever read."""
    sound = checkpoints.Checkpoint(
        3, np.arange(50, dtype=np.float32), {"m": np.ones(50)}, {"entries": 3}, {"metrics_bytes": 0}
    )
    sound.write(folder)
    file = folder / checkpoints._FILE
    content = file.read_bytes()

    def check(drawn: tuple[Any, ...]) -> str:
        if drawn[0] == "forged":
            tensors = {"model": np.zeros(50, np.float32)}
            metadata = dict(drawn[1])
            if drawn[2]:
                metadata["sha256"] = checkpoints._checksum(
                    tensors, {k: v for k, v in metadata.items() if k != "sha256"}
                )
            file.write_bytes(save(tensors, metadata=metadata))
        else:
            file.write_bytes(drawn[1] if drawn[0] == "bytes" else damaged(content, drawn))  # type: ignore[arg-type]
        try:
            checkpoint = checkpoints.Checkpoint.read(folder)
        except Exception as error:
            return _refusal(error)
        if checkpoint is None or (drawn[0] != "forged" and file.read_bytes() != content):
            raise WrongError(f"a checkpoint altered by {drawn} is read as {checkpoint}")
        return "taken"

    return check


# --- Flower messages -------------------------------------------------------------------------------------------------

ARRAYS = st.one_of(
    st.tuples(st.sampled_from(["float32", "float64", "int8", "complex64", "bool"]), st.integers(0, 8), NUMBERS),
    st.tuples(st.just("scaled"), st.just(SIZE), st.floats(0, 100)),
    st.tuples(st.just("bytes"), st.binary(max_size=150), st.sampled_from(["numpy.ndarray", "x"])),
    st.tuples(
        st.just("header"), st.sampled_from(["(99999999999,)", "(-1,)", "()", "(1e9,)", "((", "(6,)*9"]), st.none()
    ),
)
METRICS = st.dictionaries(
    st.sampled_from(["users", "sentences", "clipped", "nonfinite", "loss_sum", "votes", "other"]),
    st.one_of(st.integers(-3, 2**40), st.floats(), st.lists(st.floats(), max_size=3), st.lists(st.integers(0, 3))),
    max_size=3,
)
MESSAGES = st.tuples(
    ARRAYS,
    METRICS,
    st.sampled_from(["", "identity", "other", "none"]),
    st.sets(st.sampled_from(["arrays", "metrics", "config"])),
)


def messages(folder: Path) -> Check:
    """Check that a hostile node, one of three, moves the released sum by no more than its users may."""
    state: dict[str, Any] = {}
    client = ClientApp()

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        users = int((request.users[:, 1] - request.users[:, 0]).sum())
        vector = np.full(SIZE, 0.1, np.float32)
        honest = TrainReply(vector, users, users, 0, 0, 0.0).to_record(request)
        content = honest if context.node_config["partition-id"] else _hostile(honest, state["drawn"])
        return Message(content, reply_to=message)

    def check(drawn: tuple[Any, ...]) -> str:
        state["drawn"] = drawn
        plan = _plan(noise_multiplier=1e-12, rounds=1, population=USERS)
        parts = RoundParts(
            plan,
            Federation("{}", np.full(USERS, 2), 0),
            build_optimizer(ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0), SIZE, 1),
            IterateAverage(None, SIZE, 1),
        )
        strategy, server = BoundedSumStrategy(parts), ServerApp()

        @server.main()
        def run(grid: Grid, context: Context) -> None:
            state["result"] = strategy.start(grid, vector_to_arrays(np.zeros(SIZE, np.float32)), num_rounds=1)

        run_inline(server, client, NODES)
        _request_is_answered(drawn)
        moved = float(strategy.tally.update_norm) * plan.mechanism.denominator
        honest = 2 * 0.1 * math.sqrt(SIZE)
        allowed = honest + (1 - strategy.tally.failed_nodes) * USERS / NODES * SLACK
        if not moved <= allowed * SLACK or strategy.tally.failed_nodes > 1:
            raise WrongError(f"a reply moved the sum by {moved}; allowed: at most {allowed}")
        metrics = strategy.tally.metrics()
        if not all(math.isfinite(value) for value in metrics.values()):
            raise WrongError(f"a reply made the round's metrics {metrics}")
        return "refused" if strategy.tally.failed_nodes else "taken"

    return check


def _hostile(honest: RecordDict, drawn: tuple[Any, ...]) -> RecordDict:
    (kind, first, second), metrics, answers, left_out = drawn
    if kind == "bytes":
        array = Array("float32", (SIZE,), second, first)
    elif kind == "header":
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {first}}}".encode()
        array = Array(
            "float32", (SIZE,), "numpy.ndarray", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
        )
    else:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            value = np.full(SIZE if kind == "scaled" else first, 1.0) * (
                float(second) if abs(second) < 1e308 else 1e308
            )
            array = Array(value.astype("float32" if kind == "scaled" else kind))
    record = RecordDict(
        {
            "arrays": ArrayRecord({"vector": array}),
            "metrics": MetricRecord({**honest.metric_records["metrics"], **metrics}),
            "config": honest.config_records["config"] if answers == "identity" else ConfigRecord({"answers": answers}),
        }
    )
    for name in left_out:
        del record[name]
    return record


def _request_is_answered(drawn: tuple[Any, ...]) -> None:
    """Check that a node answers an invalid request with an error."""
    with _identity():
        grid = InlineGrid(client_app, 1)
        node = next(iter(grid.get_node_ids()))
        request = _hostile(RecordDict({"metrics": MetricRecord({}), "config": ConfigRecord({})}), drawn)
        (reply,) = grid.send_and_receive([Message(request, node, TRAIN_MESSAGE)])
    if not reply.has_error():
        raise WrongError("a node accepted an invalid request")


# --- helpers ---------------------------------------------------------------------------------------------------------


def _plan(**changes: Any) -> PrivacyPlan:
    values: dict[str, Any] = {
        "population": 100, "q_u": 1.0, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0,
    }  # fmt: skip
    rounds = changes.pop("rounds")
    return PrivacyPlan(mechanism=UserEntityDP(**(values | changes)), rounds=rounds, delta=1e-5)


KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Path], Check]]] = {
    "configurations": (CONFIGURATIONS, configurations),
    "corpora": (CORPORA, corpora),
    "ledgers": (LEDGERS, ledger_files),
    "checkpoints": (CHECKPOINTS, checkpoint_files),
    "messages": (MESSAGES, messages),
}

if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
