"""Test the ledger: written before a release, refused if changed, complete after a crash, and the source of ε."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_sim.files import sha256_of_json
from fl_sim.strategies import aggregation
from fl_sim.strategies.accounting import accountant as accounting
from fl_sim.strategies.accounting.accountant import Part, RoundEvent, composed_epsilon, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.random_allocation import EpochEvent
from fl_sim.strategies.ledger import (
    HEAD_FILE,
    LEDGER_FILE,
    Entry,
    Ledger,
    LedgerError,
    ReleaseRecord,
    epsilon_of,
    epsilon_of_any,
    has_repeated_sums,
    longest,
    since,
    together,
)
from fl_sim.strategies.messages import TrainReply, TrainRequest
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.uedp import UserEntityDP
from tests.strategies.accounting.oracles import all_of
from tests.strategies.federation import TERMS, plan, run_rounds, zeros

PLAN = plan(q_u=0.5, q_e=0.5, q_s=0.1, user_cap=5.0, noise_multiplier=2.0)
MECHANISM = PLAN.mechanism
SEEDED, SECURE = ReleaseRecord.of(MECHANISM, 0), ReleaseRecord.of(MECHANISM, None)
NOISELESS = ReleaseRecord.of(plan(strategy="noiseless", clip_norm=math.inf, noise_multiplier=0.0).mechanism, 0)
USER, BOTH = Adjacency(15), Adjacency(15, ContributionBound(5, 2))


def written(folder: Path, count: int = 4, terms: ReleaseRecord = SEEDED) -> Ledger:
    folder.mkdir(exist_ok=True)
    ledger = Ledger.create(folder)
    for number in range(1, count + 1):
        ledger.record_release(terms, number)
    return ledger


def changed(stream: str = SEEDED.stream, **values: float) -> ReleaseRecord:
    return replace(SEEDED, stream=stream, mechanism=replace(SEEDED.mechanism, **values))


def lines_of(folder: Path) -> list[bytes]:
    """The line that names the run, and a line per release."""
    return (folder / LEDGER_FILE).read_bytes().splitlines(keepends=True)


# --- written before a round is released ------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_a_round_is_on_disk_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    ledger = Ledger.create(tmp_path)
    known: list[int] = []
    for name in ("add_gaussian_noise", "add_secure_noise"):
        add = getattr(aggregation, name)

        def noisy(*arguments: Any, add: Callable = add) -> float:
            known.append(len(Ledger.read(tmp_path).entries))
            return add(*arguments)

        monkeypatch.setattr(aggregation, name, noisy)
    run_rounds(
        PLAN, rounds=3, before_release=partial(ledger.record_release, SECURE if secure else SEEDED), secure_noise=secure
    )
    assert known == [1, 2, 3]
    assert [entry.round for entry in ledger.entries] == [1, 2, 3]


def test_what_cannot_be_written_down_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(tmp_path)
    drawn: list[object] = []
    monkeypatch.setattr(aggregation, "add_gaussian_noise", lambda *arguments: drawn.append(arguments))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        run_rounds(PLAN, before_release=partial(ledger.record_release, SEEDED))
    assert drawn == []


def test_line_then_head_are_synced_before_a_release_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, synced = Ledger.create(tmp_path), []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / LEDGER_FILE).read_bytes().count(b"\n")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    ledger.record_release(SEEDED, 1)
    assert synced[0] == ((tmp_path / LEDGER_FILE).stat().st_ino, 2)
    assert (tmp_path / HEAD_FILE).stat().st_ino in {inode for inode, _ in synced[1:]}


@pytest.mark.parametrize("terms", [SEEDED, SECURE, NOISELESS])
def test_what_was_written_is_read(tmp_path: Path, terms: ReleaseRecord) -> None:
    ledger = written(tmp_path, 3, terms)
    again = Ledger.read(tmp_path)
    assert again.entries == ledger.entries
    assert {entry.terms for entry in again.entries} == {terms}
    assert (again.run, again.last_round, again.head) == (ledger.run, 3, ledger.head)
    assert ReleaseRecord.of(terms.mechanism, None if terms.noise == "secure" else 0) == terms


class Own(UserEntityDP):
    """A strategy that does not ship."""


@pytest.mark.parametrize("now", [RoundEvent("uedp", 20.0, q_u=0.5, q_e=0.5, q_s=0.1, user_cap=5.0), None])
def test_a_release_has_the_event_of_the_code_that_released_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: RoundEvent | None
) -> None:
    own = Own(**vars(MECHANISM) | {"strategy": f"{__name__}:Own"})
    written(tmp_path, 2, ReleaseRecord.of(own, 0))
    assert epsilon_of(Ledger.read(tmp_path).entries, BOTH, 1e-5) == epsilon(MECHANISM.event(), BOTH, 2, 1e-5)
    monkeypatch.setattr(Own, "event", lambda self: now)
    with pytest.raises(LedgerError, match=r"line 2: strategy .*:Own states another event than when it released"):
        Ledger.read(tmp_path)


# --- which rounds are recorded ---------------------------------------------------------------------------------------


def test_the_same_round_with_fresh_noise_is_recorded_again(tmp_path: Path) -> None:
    written(tmp_path, 4, SECURE)
    resumed = Ledger.open(tmp_path)
    for number in (3, 4, 5):
        resumed.record_release(SECURE, number)
    assert [entry.round for entry in Ledger.read(tmp_path).entries] == [1, 2, 3, 4, 3, 4, 5]
    assert [resumed.releases(up_to=number) for number in (0, 3, 5)] == [0, 4, 7]


def test_another_sum_is_another_release_with_noise_of_its_own(tmp_path: Path) -> None:
    ledger = written(tmp_path, 0)
    streams = [ledger.record_release(SEEDED, 1, total) for total in ("a", "b", "a", "b")]
    assert streams == ["", "b", "", "b"]
    resumed = Ledger.open(tmp_path)
    assert [(entry.round, entry.sum) for entry in resumed.entries] == [(1, "a"), (1, "b")]
    assert [resumed.record_release(SEEDED, 1, total) for total in ("b", "a", "c")] == ["b", "", "c"]
    assert len(Ledger.read(tmp_path).entries) == 3


def test_equal_sums_with_another_clip_or_vote_are_other_releases() -> None:
    """Noise is scaled with the clip, and a noisy count is a part of the release."""
    adaptive = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)
    hashes: list[str] = []

    def keep(server_round: int, total: str) -> str:
        hashes.append(total)
        return ""

    def voting(request: TrainRequest, users: np.ndarray) -> TrainReply:
        return replace(zeros(request, users), votes=0.5)

    for clip_norm, answer in ((1.0, zeros), (2.0, zeros), (1.0, voting), (1.0, zeros)):
        run_rounds(plan(clip_norm=clip_norm, adaptive=adaptive), answer=answer, before_release=keep)
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 3


@pytest.mark.nightly
def test_sums_of_one_round_count_as_one_round_of_less_noise() -> None:
    """They have the same samples, so they are not independent rounds."""
    entries = [Entry("run", number, SEEDED, str(number)) for number in (1, 2, 3)]
    repeated = [*entries, Entry("run", 2, SEEDED, "other"), Entry("run", 2, SEEDED, "third")]
    event = MECHANISM.event()
    less = replace(event, noise_multiplier=event.noise_multiplier / math.sqrt(3))
    assert epsilon_of(repeated, BOTH, 1e-5) == composed_epsilon([(event, BOTH, 2), (less, BOTH, 1)], 1e-5)
    other_run = [replace(entry, run="other") for entry in entries]
    assert epsilon_of([*entries, *other_run], BOTH, 1e-5) == composed_epsilon([(event, BOTH, 6)], 1e-5)
    fresh = [Entry("run", 1, SECURE)] * 2
    assert epsilon_of(fresh, BOTH, 1e-5) == composed_epsilon([(event, BOTH, 2)], 1e-5)


def test_two_sums_of_a_round_without_sampling_are_one_gaussian_of_two(tmp_path: Path) -> None:
    """Without sampling, k sums of a round are k rounds: the bound for equal samples is then exact."""
    level = ReleaseRecord.of(plan(strategy="user_level", q_u=1.0, noise_multiplier=4.0).mechanism, 0)
    entries = [Entry("run", 1, level, total) for total in "ab"]
    rounds = [Entry("run", number, level, "a") for number in (1, 2)]
    assert epsilon_of(entries, Adjacency(), 1e-5) == pytest.approx(epsilon_of(rounds, Adjacency(), 1e-5), rel=1e-3)


def test_a_ledger_is_bound_before_its_first_release(tmp_path: Path) -> None:
    ledger = written(tmp_path, 0)
    ledger.bind("0a1b")
    ledger.record_release(SEEDED, 1)
    assert Ledger.open(tmp_path).computation == "0a1b"
    with pytest.raises(LedgerError, match="it cannot be bound any more"):
        ledger.bind("other")
    first, release = lines_of(tmp_path)
    rewrite(tmp_path, [first.replace(b'"0a1b"', b'"other"'), release])
    refused(tmp_path, "line 1: was changed")
    values = json.loads(first) | {"computation": "other"}
    del values["hash"]
    rewrite(tmp_path, [json.dumps(values | {"hash": sha256_of_json(values)}).encode() + b"\n", release])
    refused(tmp_path, "line 2: does not follow")


@pytest.mark.parametrize("lost", [LEDGER_FILE, HEAD_FILE])
def test_a_run_that_is_killed_while_its_ledger_is_bound_goes_on(tmp_path: Path, lost: str) -> None:
    """Line and head are two files, and nothing was released."""
    ledger = written(tmp_path, 0)
    before = (tmp_path / lost).read_bytes()
    ledger.bind("0a1b")
    (tmp_path / lost).write_bytes(before)
    again = Ledger.open(tmp_path)
    again.bind("0a1b")
    assert again.head == Ledger.read(tmp_path).head == ledger.head


@pytest.mark.parametrize(
    "change", [{"q_s": 0.2}, {"noise_multiplier": 1.0}, {"clip_norm": 2.0}, {"population": 11}, {"stream": "other"}]
)
def test_other_settings_for_a_released_round_are_refused(tmp_path: Path, change: dict) -> None:
    ledger = written(tmp_path, 2)
    with pytest.raises(LedgerError, match=rf"round 2 was released with other settings \({next(iter(change))} "):
        ledger.record_release(changed(**change), 2)
    assert len(lines_of(tmp_path)) == 3


@pytest.mark.parametrize("number", [0, -1, 4, 9])
def test_a_gap_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(LedgerError, match="does not follow round 2"):
        written(tmp_path, 2).record_release(SEEDED, number)


def test_a_ledger_is_started_once(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(LedgerError, match="exists"):
        Ledger.create(tmp_path)


# --- touched ledgers are refused -------------------------------------------------------------------------------------


def refused(folder: Path, message: str) -> None:
    for attempt in (Ledger.read, Ledger.open):
        with pytest.raises(LedgerError, match=message) as caught:
            attempt(folder)
        assert "\n" not in str(caught.value)


def rewrite(folder: Path, lines: list[bytes]) -> None:
    (folder / LEDGER_FILE).write_bytes(b"".join(lines))


@pytest.mark.parametrize("line", [1, 2, 4])
@pytest.mark.parametrize("field", [*SEEDED.record(), "round", "previous", "hash"])
def test_a_changed_field_is_refused(tmp_path: Path, line: int, field: str) -> None:
    written(tmp_path)
    lines = lines_of(tmp_path)
    values = json.loads(lines[line])
    values[field] = values[field] * 2 if isinstance(values[field], int | float) else "0" * 64
    lines[line] = json.dumps(values).encode() + b"\n"
    rewrite(tmp_path, lines)
    refused(tmp_path, rf"ledger\.jsonl, line {line + 1}: was changed")


def test_a_change_with_a_hash_to_match_breaks_the_chain(tmp_path: Path) -> None:
    written(tmp_path / "own")
    other = written(tmp_path / "other", terms=ReleaseRecord.of(replace(MECHANISM, noise_multiplier=9.0), 0))
    lines, foreign = lines_of(tmp_path / "own"), lines_of(other.folder)
    rewrite(tmp_path / "own", [*lines[:4], foreign[4]])
    refused(tmp_path / "own", r"line 5: does not follow the line before it")


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ((0, 1, 3, 2, 4), 3),
        ((0, 1, 2, 4, 3), 4),
        ((0, 1, 3, 4), 3),
        ((0, 2, 3, 4), 2),
        ((0, 1, 1, 2, 3, 4), 3),
        ((0, 0, 1, 2, 3, 4), 2),
    ],
)
def test_reordered_removed_or_repeated_lines_are_refused(tmp_path: Path, order: tuple[int, ...], line: int) -> None:
    written(tmp_path)
    lines = lines_of(tmp_path)
    rewrite(tmp_path, [lines[number] for number in order])
    refused(tmp_path, rf"ledger\.jsonl, line {line}: does not follow the line before it")


def test_a_ledger_that_does_not_begin_with_its_run_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    rewrite(tmp_path, lines_of(tmp_path)[1:])
    refused(tmp_path, r"ledger\.jsonl, line 1: does not begin a ledger")


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
@pytest.mark.parametrize("tail", [b"", b'{"clip', None])
def test_a_cut_off_ledger_is_refused(tmp_path: Path, kept: int, tail: bytes | None) -> None:
    written(tmp_path)
    lines = lines_of(tmp_path)
    rewrite(tmp_path, [*lines[:kept], lines[kept][:-1] if tail is None else tail])
    refused(tmp_path, rf"ledger\.jsonl, line {kept + 1}: is cut off")


def test_lines_that_the_head_does_not_know_are_refused(tmp_path: Path) -> None:
    ledger = written(tmp_path, 2)
    head = (tmp_path / HEAD_FILE).read_bytes()
    ledger.record_release(SEEDED, 3)
    ledger.record_release(SEEDED, 4)
    (tmp_path / HEAD_FILE).write_bytes(head)
    refused(tmp_path, r"line 4: was added")
    rewrite(tmp_path, [*lines_of(tmp_path)[:4], b"half"])
    refused(tmp_path, r"line 4: was added")


def test_a_ledger_of_another_run_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "own")
    other = written(tmp_path / "other")
    (other.folder / HEAD_FILE).write_bytes((tmp_path / "own" / HEAD_FILE).read_bytes())
    refused(other.folder, r"line 1: is that of another run")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (LEDGER_FILE, None, r"ledger\.jsonl: is missing"),
        (HEAD_FILE, None, r"head\.json: is missing"),
        (HEAD_FILE, b"", r"head\.json, line 1: is corrupt"),
        (HEAD_FILE, b"[]", r"head\.json, line 1: is corrupt"),
        (HEAD_FILE, b'{"run": "a", "entries": -1, "last": "b"}', r"head\.json, line 1: is corrupt"),
        (HEAD_FILE, b'{"run": "../a", "entries": 4, "last": "b"}', r"head\.json, line 1: is corrupt"),
        (LEDGER_FILE, b"\xff\n", r"line 1: is corrupt"),
        (LEDGER_FILE, b"null\n", r"line 1: is corrupt"),
    ],
)
def test_missing_and_corrupt_files_are_refused(tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    written(tmp_path)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    refused(tmp_path, message)


def test_a_head_with_another_last_hash_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    head = json.loads((tmp_path / HEAD_FILE).read_bytes())
    (tmp_path / HEAD_FILE).write_text(json.dumps(head | {"last": "0" * 64}))
    refused(tmp_path, "line 5: was changed")


def test_a_consistent_forgery_does_not_match_a_kept_head_hash(tmp_path: Path) -> None:
    ledger = written(tmp_path / "own", 4)
    head = ledger.head
    ledger.record_release(SEEDED, 5)
    Ledger.read(ledger.folder).check_head(head)  # it may go on
    forged = written(tmp_path / "forged", 4)
    for other in (forged, written(tmp_path / "short", 3)):
        with pytest.raises(LedgerError, match="head hash was kept after 4 entries"):
            other.check_head(head)
    with pytest.raises(LedgerError, match="head hash was kept after None entries"):
        ledger.check_head({})


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_after_a_crash_at_any_byte_the_ledger_goes_on(tmp_path: Path) -> None:
    """The process dies while it writes the third line, or between the line and the head."""
    folder = tmp_path / "run"
    ledger = written(folder, 2)
    head, two = (folder / HEAD_FILE).read_bytes(), (folder / LEDGER_FILE).read_bytes()
    ledger.record_release(SEEDED, 3)
    three = (folder / LEDGER_FILE).read_bytes()
    for size in [*range(len(two), len(three), 37), len(three) - 1, len(three)]:
        (folder / LEDGER_FILE).write_bytes(three[:size])
        (folder / HEAD_FILE).write_bytes(head)
        released = 3 if size == len(three) else 2  # noise is drawn only once the whole line is on disk
        assert len(Ledger.read(folder).entries) == released
        resumed = Ledger.open(folder)
        assert json.loads((folder / HEAD_FILE).read_bytes()) == resumed.head
        resumed.record_release(SEEDED, 3)
        assert (folder / LEDGER_FILE).read_bytes() == three
        assert len(Ledger.read(folder).entries) == 3


def test_reading_mends_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    with (tmp_path / LEDGER_FILE).open("ab") as file:
        file.write(b"half")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    Ledger.read(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


# --- ε from entries --------------------------------------------------------------------------------------------------


def test_epsilon_of_equal_entries_is_that_of_the_accountant(tmp_path: Path) -> None:
    entries = written(tmp_path, 6).entries
    for adjacency in (USER, BOTH):
        assert epsilon_of(entries, adjacency, 1e-5) == epsilon(MECHANISM.event(), adjacency, 6, 1e-5)
    robust = epsilon_of(entries, BOTH, 1e-5, robust=True)
    assert robust == epsilon(MECHANISM.event().robust(), BOTH, 6, 1e-5) > epsilon_of(entries, BOTH, 1e-5)
    assert epsilon_of([], BOTH, 1e-5) == 0.0


@pytest.mark.parametrize(
    ("by_weight", "by_number"),
    [
        (Adjacency(9, ContributionBound(2, 5, 1, weighted=True)), Adjacency(9, ContributionBound(2, 5))),
        (Adjacency(1, weighted=True), Adjacency(math.inf)),
    ],
)
def test_a_sum_of_weights_bounds_no_line_without_weights(
    tmp_path: Path, by_weight: Adjacency, by_number: Adjacency
) -> None:
    entries = written(tmp_path).entries
    assert epsilon_of(entries, by_weight, 1e-5) == epsilon_of(entries, by_number, 1e-5)
    counts = Guarantee(known="counts", entity_bound=1, user_sentences=1)
    others = [replace(entry, terms=replace(entry.terms, guarantee=counts)) for entry in entries]
    assert epsilon_of(others, by_weight, 1e-5) < epsilon_of(entries, by_weight, 1e-5)


def test_one_round_without_noise_leaves_no_guarantee(tmp_path: Path) -> None:
    private, bare = written(tmp_path / "a", 5), written(tmp_path / "b", 1, NOISELESS)
    assert epsilon_of([*private.entries, *bare.entries], USER, 1e-5) == math.inf


EVENTS = {
    RoundEvent("uedp", 2.0, 0.5, 0.5, 0.1, 5.0): 20,
    RoundEvent("uedp", 1.0, 1.0, 0.5, 0.05, 15.0): 12,
    RoundEvent("user_level", 1.5, 0.1): 7,
    RoundEvent("uedp", 4.0, 0.2, 0.5, clipping="user"): 1,
}


@pytest.mark.nightly
@pytest.mark.parametrize("adjacency", [USER, BOTH, Adjacency(math.inf, ContributionBound(1, 40))])
def test_equal_rounds_in_parts_cost_what_they_cost_together(adjacency: Adjacency) -> None:
    for event in EVENTS:
        tail = composition.tail_share(1e-5, 30)
        parts = [accounting._best_part(event, adjacency, count, 1e-5, tail) for count in (14, 1, 15)]
        single = [replace(part, mixtures=parts[0].mixtures) for part in parts]
        assert composition.epsilon_of_parts(single, 1e-5) == pytest.approx(
            epsilon(event, adjacency, 30, 1e-5), rel=1e-4
        )


def test_equal_kinds_are_added() -> None:
    event = next(iter(EVENTS))
    assert composed_epsilon([(event, BOTH, 10), (event, BOTH, 20)], 1e-5) == epsilon(event, BOTH, 30, 1e-5)


def test_several_kinds_never_cost_less_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = 1.234e-5  # of no other test: what was composed is kept
    alone = [epsilon(event, USER, count, delta) for event, count in EVENTS.items()]
    monkeypatch.setattr(composition, "epsilon_of_parts", lambda parts, delta: 0.999 * max(alone))
    assert composed_epsilon(all_of(EVENTS, USER), delta) == max(alone)


def test_plain_gaussians_of_several_scales_are_exact() -> None:
    """Without sampling, rounds of noise z_i are one Gaussian with μ² = Σ 1/z_i², whose δ is known in closed form."""
    counts = {3.0: 4, 8.0: 30, 20.0: 100}
    mu = math.sqrt(sum(count / z**2 for z, count in counts.items()))
    events = {RoundEvent("user_level", z): count for z, count in counts.items()}
    for delta in (1e-3, 1e-6):
        composed = composed_epsilon(all_of(events, Adjacency()), delta)
        exact = stats.norm.cdf(mu / 2 - composed / mu) - math.exp(composed) * stats.norm.cdf(-mu / 2 - composed / mu)
        assert delta * 0.99 < exact <= delta


def test_several_subsampled_gaussians_agree_with_dp_accounting() -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    counts = {(0.02, 1.2): 30, (0.3, 2.0): 10, (0.1, 0.8): 5}
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for (q_u, z), count in counts.items():
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q_u, dp_accounting.GaussianDpEvent(z)), count)
    events = {RoundEvent("user_level", z, q_u=q_u): count for (q_u, z), count in counts.items()}
    assert composed_epsilon(all_of(events, Adjacency()), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


# --- the headline: any user with any entity ---------------------------------------------------------------------------

BOUNDED = Guarantee(known="graph", entity_bound=5, user_sentences=15)


def bounded(folder: Path, seed: int = 0, z: float = 2.0, **changes: Any) -> tuple[Entry, ...]:
    """The entries of four rounds under enforced bounds, as their ledger is read."""
    mechanism = replace(MECHANISM, noise_multiplier=z)
    written(folder, 4, ReleaseRecord.of(mechanism, seed, replace(BOUNDED, **changes)))
    return Ledger.read(folder).entries


def headline(*runs: tuple[Entry, ...], robust: bool = False) -> list[float]:
    """ε of every choice of a unit for each run; of the entities alone and unsampled if ``robust``."""
    figures = []
    for choice in itertools.product((0,) if robust else (0, 1), repeat=len(runs)):
        parts: list[Part] = []
        for entries, index in zip(runs, choice, strict=True):
            terms = entries[0].terms
            unit = terms.guarantee.units(clips_sentences=True, population=10)[index]
            event = terms.mechanism.event()
            assert event is not None
            parts.append((event.robust() if unit.robust or robust else event, unit.adjacency, len(entries)))
        figures.append(composed_epsilon(parts, 1e-5))
    return figures


@pytest.mark.parametrize("entity_bound", [1, 5])
def test_the_headline_is_the_largest_epsilon_of_the_units(tmp_path: Path, entity_bound: int) -> None:
    """An entity of five sentences decides where they are sampled together, else a sentence without any entity."""
    entries = bounded(tmp_path / "a", entity_bound=entity_bound)
    figures = headline(entries)
    assert epsilon_of_any(entries, 1e-5) == max(figures) > min(figures)
    assert int(np.argmax(figures)) == (1 if entity_bound == 1 else 0)


@pytest.mark.nightly
def test_the_headline_of_two_runs_is_the_largest_over_both_of_their_units(tmp_path: Path) -> None:
    """Whatever the tagger found in either run."""
    runs = [bounded(tmp_path / "a", entity_bound=1), bounded(tmp_path / "b", 1, 3.0)]
    figures = headline(*runs)
    assert epsilon_of_any([*runs[0], *runs[1]], 1e-5) == max(figures)
    assert int(np.argmax(figures)) == 2  # a sentence without an entity in the first, an entity in the second
    assert len(set(figures)) == 4


def test_the_headline_of_many_runs_relies_on_no_tagger(tmp_path: Path) -> None:
    runs = [bounded(tmp_path / name, seed, 6.0) for seed, name in enumerate("abcd")]
    together_ = epsilon_of_any([entry for entries in runs for entry in entries], 1e-5)
    assert [together_] == headline(*runs, robust=True)
    assert together_ > max(headline(*runs[:1])) > 0


def test_the_headline_is_infinite_where_one_run_enforces_no_bound(tmp_path: Path) -> None:
    entries = bounded(tmp_path / "a")
    for name, changes in {"b": {"known": "nothing", "user_sentences": None}, "c": {"entity_bound": None}}.items():
        other = bounded(tmp_path / name, 1, **changes)
        assert epsilon_of_any(other, 1e-5) == epsilon_of_any([*entries, *other], 1e-5) == math.inf
    assert epsilon_of_any(written(tmp_path / "d").entries, 1e-5) == math.inf


# --- rounds of other strategies: each exposes the entity in its own way ----------------------------------------------


def entries_of(count: int, **settings: object) -> list[Entry]:
    terms = ReleaseRecord.of(plan(**{"population": 200, **settings}).mechanism, 0)
    return [Entry(str(settings), number, terms) for number in range(1, count + 1)]


def published(z: float, **caps: float) -> dict:
    terms = replace(TERMS, **caps)
    return {"strategy": "published", "options": terms, "q_u": 0.05, "clip_norm": 0.1, "noise_multiplier": z}


def test_a_run_that_exposes_the_entity_to_all_users_takes_nothing_off_another() -> None:
    """Accounted for at the wider of both bounds by users, these two together came out at 117."""
    entity = Adjacency(40, ContributionBound(15, 50))
    uedp = entries_of(30, q_e=0.5, q_s=0.1, user_cap=2.0, noise_multiplier=4.0)
    other = entries_of(30, **published(200.0, entity_cap=3.0))
    alone = [epsilon_of(entries, entity, 1e-5) for entries in (uedp, other)]
    assert (round(alone[0], 1), round(alone[1], 3)) == (800.2, 0.16)
    assert alone[0] < epsilon_of([*uedp, *other], entity, 1e-5) < 801


@st.composite
def runs(draw: st.DrawFn) -> list[Entry]:
    """Entries of one run of any shipped strategy."""
    z, q_u = draw(st.floats(0.5, 50.0)), draw(st.sampled_from([0.05, 0.3, 1.0]))
    rates: dict = {"q_u": q_u, "q_e": draw(st.floats(0.1, 1.0)), "q_s": draw(st.floats(0.05, 1.0)), "user_cap": 3.0}
    adaptive = draw(st.sampled_from([None, AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)]))
    kinds: dict[str, dict] = {
        "sentence clip": rates | {"noise_multiplier": z, "adaptive": adaptive},
        "user clip": rates | {"noise_multiplier": z, "clipping": "user"},
        "user level": {"strategy": "user_level", "q_u": q_u, "noise_multiplier": z, "adaptive": adaptive},
        "published": published(z),
        "weights from data": published(z, entity_cap=3.0),
        "noiseless": {"strategy": "noiseless", "clip_norm": math.inf, "noise_multiplier": 0.0},
    }
    return entries_of(draw(st.integers(1, 40)), **kinds[draw(st.sampled_from(list(kinds)))])


@pytest.mark.nightly
@settings(deadline=None, max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(runs(), min_size=2, max_size=3),
    st.sampled_from([0.0, 15.0, math.inf]),
    st.sampled_from([(0, 1, None), (1, 40, None), (5, 2, 7), (60, 1, None)]),
    st.booleans(),
    st.booleans(),
)
def test_another_run_never_lowers_epsilon(
    several: list[list[Entry]], user: float, entity: tuple[int, int, int | None], weighted: bool, robust: bool
) -> None:
    adjacency = Adjacency(user, ContributionBound(*entity), weighted=weighted)
    figures = [epsilon_of(entries, adjacency, 1e-5, robust=robust) for entries in several]
    first_two = epsilon_of([*several[0], *several[1]], adjacency, 1e-5, robust=robust)
    together = epsilon_of([entry for entries in several for entry in entries], adjacency, 1e-5, robust=robust)
    assert max(*figures, first_two) <= together * (1 + 1e-12)  # sums in another order differ in their last bits
    assert first_two >= max(figures[:2])


# --- several runs, and joining later ---------------------------------------------------------------------------------


def test_runs_compose(tmp_path: Path) -> None:
    louder = replace(MECHANISM, noise_multiplier=1.0)
    one, other = written(tmp_path / "a", 4), written(tmp_path / "b", 3, ReleaseRecord.of(louder, 1))
    entries = together([one, other])
    expected = composed_epsilon([(MECHANISM.event(), BOTH, 4), (louder.event(), BOTH, 3)], 1e-5)
    assert epsilon_of(entries, BOTH, 1e-5) == expected
    secure = [written(tmp_path / name, 2, SECURE) for name in ("c", "d")]
    assert len(together([one, *secure])) == 8


def test_runs_that_are_not_independent_do_not_compose(tmp_path: Path) -> None:
    one = written(tmp_path / "a")
    same_seed = written(tmp_path / "b", 2, ReleaseRecord.of(replace(MECHANISM, noise_multiplier=5.0), 0))
    with pytest.raises(LedgerError, match="same seed"):
        together([one, same_seed])


def copied(ledger: Ledger, folder: Path) -> Ledger:
    """A copy of the folder of a run, opened to go on."""
    shutil.copytree(ledger.folder, folder)
    return Ledger.open(folder)


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    one = written(tmp_path / "a")
    again = Ledger.read(one.folder)
    assert together([one, again]) == together([again, one]) == list(one.entries)
    assert longest([one, again]) == [one]
    older = copied(one, tmp_path / "older")
    one.record_release(SEEDED, 5)
    assert together([older, one]) == list(one.entries)
    assert longest([older, one]) == longest([one, older]) == [one]


def test_copies_that_went_on_separately_are_united(tmp_path: Path) -> None:
    """Three common releases and two of each copy are seven, and no fewer: each copy drew noise of its own."""
    one = written(tmp_path / "a", 3, SECURE)
    other = copied(one, tmp_path / "b")
    for ledger in (one, other):
        for number in (4, 5):
            ledger.record_release(SECURE, number)
    third = copied(one, tmp_path / "c")
    third.record_release(SECURE, 6)
    entries = together([one, other])
    assert [entry.round for entry in entries] == [1, 2, 3, 4, 5, 4, 5]
    assert epsilon_of(entries, BOTH, 1e-5) == epsilon(MECHANISM.event(), BOTH, 7, 1e-5)
    assert len(together([other, one, third])) == 8
    assert longest([one, other, third]) == [other, third]


def test_secure_noise_without_a_random_sum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that went on separately could not be told apart."""
    ledger = written(tmp_path, 0, SECURE)
    monkeypatch.setattr("secrets.token_hex", lambda size: "" if size == 16 else "0")
    ledger.record_release(SECURE, 1)
    refused(tmp_path, r"line 2: is corrupt \(sum is empty\)")


def test_copies_of_a_seeded_run_release_the_same_or_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "a", 0)
    one.record_release(SEEDED, 1, "first")
    same, other = copied(one, tmp_path / "b"), copied(one, tmp_path / "c")
    for ledger, total in ((one, "second"), (same, "second"), (other, "moved")):
        ledger.record_release(SEEDED, 2, total)
    assert len(together([one, same])) == 2
    with pytest.raises(LedgerError, match="round 2 has another sum than in another copy of the run, under the same"):
        together([one, other])


def test_only_releases_from_the_joining_round_on_count(tmp_path: Path) -> None:
    entries = written(tmp_path / "a", 6).entries
    assert [entry.round for entry in since(entries, 4)] == [4, 5, 6]
    assert since(entries, 1) == list(entries)
    for number in (0, 7):
        with pytest.raises(LedgerError, match="allowed: a released round, 1 to 6"):
            since(entries, number)


def test_the_releases_up_to_a_round_and_whether_sums_may_repeat(tmp_path: Path) -> None:
    """Both are asked after every round, so neither may read all entries then."""
    ledger = written(tmp_path)
    assert [ledger.releases(up_to) for up_to in range(6)] == [0, 1, 2, 3, 4, 4]
    assert not ledger.may_repeat_sums(4)
    ledger.record_release(SEEDED, 3, "other")
    for reader in (ledger, Ledger.read(tmp_path)):
        assert (reader.last_round, reader.releases(2), reader.releases(3), reader.releases(4)) == (4, 2, 4, 5)
        assert [reader.may_repeat_sums(up_to) for up_to in range(1, 5)] == [False, False, True, True]
        for up_to in range(1, 5):
            entries = [entry for entry in reader.entries if entry.round <= up_to]
            assert has_repeated_sums(entries) == reader.may_repeat_sums(up_to)


def test_a_repeated_earlier_round_counts_after_joining(tmp_path: Path) -> None:
    ledger = written(tmp_path, 4, SECURE)
    for number in (2, 3, 4):
        ledger.record_release(SECURE, number)
    assert [entry.round for entry in since(ledger.entries, 3)] == [3, 4, 2, 3, 4]


def test_another_version_of_the_mechanism_is_refused() -> None:
    with pytest.raises(PrivacyError, match="mechanism is 2; allowed: 1"):
        replace(SEEDED, version=2)


# --- random allocation -----------------------------------------------------------------------------------------------

LEVEL = plan(strategy="user_level", q_u=0.2, noise_multiplier=1.0, epoch_rounds=5).mechanism
ALLOCATED = ReleaseRecord.of(LEVEL, 0)


def test_rounds_under_random_allocation_count_by_epochs(tmp_path: Path) -> None:
    ledger = written(tmp_path, 13, ALLOCATED)
    entries = Ledger.read(tmp_path).entries
    assert entries == ledger.entries
    assert entries[0].terms.mechanism == LEVEL
    expected = composed_epsilon(all_of({EpochEvent(1.0, 5, 5): 2, EpochEvent(1.0, 5, 3): 1}, USER), 1e-5)
    assert epsilon_of(entries, USER, 1e-5) == expected == epsilon(LEVEL.event(), USER, 13, 1e-5)
    assert epsilon_of(entries, USER, 1e-5, robust=True) == expected
    independent = [replace(entry, terms=SEEDED) for entry in entries[:3]]
    assert epsilon_of([*entries, *independent], USER, 1e-5) > expected


def test_who_joins_within_an_epoch_is_charged_for_its_rest(tmp_path: Path) -> None:
    entries = since(written(tmp_path, 13, ALLOCATED).entries, 4)
    parts = {EpochEvent(1.0, 5, 2): 1, EpochEvent(1.0, 5, 5): 1, EpochEvent(1.0, 5, 3): 1}
    assert epsilon_of(entries, USER, 1e-5) == pytest.approx(composed_epsilon(all_of(parts, USER), 1e-5), rel=1e-4)


def test_epochs_of_several_runs_are_independent(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", 3, ALLOCATED), written(tmp_path / "b", 2, ReleaseRecord.of(LEVEL, 1))
    both = epsilon_of(together([one, other]), USER, 1e-5)
    assert both == composed_epsilon(all_of({EpochEvent(1.0, 5, 3): 1, EpochEvent(1.0, 5, 2): 1}, USER), 1e-5)
    assert both > epsilon(LEVEL.event(), USER, 5, 1e-5)


def test_an_epoch_has_the_smallest_noise_of_its_rounds_and_one_length(tmp_path: Path) -> None:
    entries = list(written(tmp_path, 5, ALLOCATED).entries)
    quiet = replace(ALLOCATED, mechanism=replace(ALLOCATED.mechanism, noise_multiplier=3.0))
    mixed = [*entries[:4], replace(entries[4], terms=quiet)]
    assert epsilon_of(mixed, USER, 1e-5) == epsilon_of(entries, USER, 1e-5)
    longer = replace(ALLOCATED, mechanism=replace(ALLOCATED.mechanism, q_u=0.1, epoch_rounds=10))
    with pytest.raises(LedgerError, match="epoch_rounds is 10; allowed: 5, as in earlier rounds of the run"):
        epsilon_of([*entries[:4], replace(entries[4], terms=longer)], USER, 1e-5)


def test_secure_noise_has_no_random_allocation() -> None:
    with pytest.raises(PrivacyError, match="noise is 'secure'; allowed: seeded under random allocation"):
        ReleaseRecord.of(LEVEL, None)


def test_a_round_of_an_epoch_that_is_repeated_with_another_sum_counts_as_one_of_less_noise(tmp_path: Path) -> None:
    entries = written(tmp_path, 5, ALLOCATED).entries
    less = composed_epsilon(all_of({EpochEvent(1 / math.sqrt(2), 5, 5): 1}, USER), 1e-5)
    repeated = [*entries, replace(entries[0], sum="other")]
    assert epsilon_of(repeated, USER, 1e-5) == less > epsilon_of(entries, USER, 1e-5)


def test_hardly_any_noise_is_no_noise(tmp_path: Path) -> None:
    """The accountant's grid cannot hold such an ε; without a finite one there is no guarantee."""
    ledger = written(tmp_path, 1, changed(noise_multiplier=1e-200))
    assert epsilon_of(ledger.entries, Adjacency(3), 1e-5) == math.inf


def test_the_headline_of_runs_covers_the_names_that_all_of_them_protect(tmp_path: Path) -> None:
    """A run sets no limit for the names on its list, so that another run's list does not cover them."""
    none, one, same, other = (
        bounded(tmp_path / name, seed, public_names=names)
        for seed, (name, names) in enumerate({"a": "", "b": "x", "c": "x", "d": "y"}.items())
    )
    assert epsilon_of_any([*none, *one, *same], 1e-5) < math.inf
    assert epsilon_of_any([*one, *other], 1e-5) == math.inf
