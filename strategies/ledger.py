"""Keep a ledger of the releases of a run, so that its ε follows from the rounds that ran, not from the plan.

``ledger.jsonl`` in a run's folder is append-only. Its first line names the run, the heads of its *ancestors* (the runs
that trained its initial model) and a digest of all that its releases are computed from (:meth:`Ledger.bind`). Every
further line is a release. Each line has its own hash, and a release that of the line before it. Run, number of releases
and last hash are the *head* of the ledger: ``ledger.head.json``, replaced after each line, with copies in checkpoint,
result and anchor. A line that was changed, removed, added or moved is refused.

A release is recorded, and on disk, *before* it leaves the server. After a crash at any point the ledger holds at least
what was released: an unfinished last line was never released, and a complete line ahead of the head may have been, so
it counts. A round that is repeated with another sum is another release: it has another entry, and seeded noise from a
stream that the hash of its sum names. No two sums have the same noise. See docs/privacy-accounting.md, section 9.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     ledger = Ledger.create(Path(folder))
...     ledger.head["entries"], Ledger.read(Path(folder)).last_round, ledger.releases(up_to=10)
(0, 0, 0)
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeGuard, get_args

from fl_sim.files import MOST_LOG_BYTES, canonical_json, json_object, naming, read_bytes, replace_file, sha256_of_json
from fl_sim.formats import one_line
from fl_sim.plugins import PluginError
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit, public_lists
from fl_sim.strategies.accounting.random_allocation import EpochEvent
from fl_sim.strategies.mechanism import NUMBERS, Mechanism
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.limits import SMALLEST_NOISE, require
from fl_sim.strategies.registry import STRATEGIES, mechanism_from_record

LEDGER_FILE = "ledger.jsonl"
HEAD_FILE = "ledger.head.json"
MECHANISM = 1
"""Version of a round's computation; raised when equal release records would stand for releases with another proof."""

NoiseSource = Literal["seeded", "secure"]

_MOST_COMBINED = 3
"""Corpora up to which all combinations of protected units are composed."""


class LedgerError(PrivacyError):
    """Report a ledger that cannot be trusted, or a release that it must not record; one line that names the file."""


class LedgerHead(TypedDict):
    """The identity of a run, the number of its releases, and the hash of the ledger's last line."""

    run: str
    entries: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecord:
    """Describe the release of a round: all that its ε depends on, and the source of its noise.

    Attributes:
        mechanism: what the round did.
        version: of the mechanisms, :data:`MECHANISM`; the key ``mechanism`` of an entry.
        noise: ``seeded`` (a function of seed, computation and round) or ``secure`` (fresh from the operating system).
        stream: a fingerprint of the seed of seeded noise, which does not reveal it; empty for secure noise.
        guarantee: the public bounds on users and entities under which the round was computed.

    Raises:
        PrivacyError: a value is impossible.
    """

    mechanism: Mechanism
    version: int = MECHANISM
    noise: NoiseSource
    stream: str
    guarantee: Guarantee = field(default_factory=Guarantee)

    def __post_init__(self) -> None:
        require(self.version == MECHANISM, "mechanism", self.version, f"{MECHANISM} (other versions of fl-sim differ)")
        sources = get_args(NoiseSource)
        require(self.noise in sources, "noise", repr(self.noise), ", ".join(sources))
        allocated = (event := self.mechanism.event()) is not None and event.epoch_rounds is not None
        require(not (allocated and self.noise == "secure"), "noise", "'secure'", "seeded under random allocation")

    @classmethod
    def of(cls, mechanism: Mechanism, seed: int | None, guarantee: Guarantee | None = None) -> ReleaseRecord:
        """Return the release record of a mechanism; ``seed`` is that of seeded noise, None for secure noise."""
        numbers: dict[str, Any] = {name: float(getattr(mechanism, name)) for name in NUMBERS}
        return cls(
            mechanism=replace(mechanism, **numbers),
            noise="secure" if seed is None else "seeded",
            stream="" if seed is None else cls.stream_of(seed),
            guarantee=guarantee or Guarantee(),
        )

    @staticmethod
    def stream_of(seed: int) -> str:
        """Return the fingerprint of the noise that ``seed`` stands for."""
        return f"{streams.derived_seed(seed, 'ledger'):032x}"

    def record(self) -> dict[str, object]:
        """The terms as an entry keeps them; with the event of a strategy that does not ship, whose code may change."""
        own = {"mechanism": self.version, "noise": self.noise, "stream": self.stream}
        event = {} if self.mechanism.strategy in STRATEGIES.built_in else {"event": self._event()}
        return self.mechanism.record() | own | {"guarantee": self.guarantee.record()} | event

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> ReleaseRecord:
        """The inverse of :meth:`record`.

        Raises as :func:`~fl_sim.strategies.registry.mechanism_from_record` does, and PrivacyError where the strategy
        states another event now than when it released.
        """
        own = ("mechanism", "noise", "stream", "guarantee")
        version, noise, stream, guarantee = (values[name] for name in own)
        mechanism = mechanism_from_record({name: values[name] for name in values.keys() - {*own, "event"}})
        bounds = Guarantee.from_record(guarantee)
        terms = cls(mechanism=mechanism, version=version, noise=noise, stream=stream, guarantee=bounds)
        if "event" in values and values["event"] != terms._event():
            raise PrivacyError(
                f"strategy {mechanism.strategy} states another event than when it released; allowed: its code of then"
            )
        return terms

    def _event(self) -> dict[str, Any] | None:
        event = self.mechanism.event()
        return None if event is None else asdict(event)


_KINDS: dict[str, tuple[type, ...]] = (
    dict.fromkeys(NUMBERS, (int, float))
    | dict.fromkeys(("mechanism", "population"), (int,))
    | dict.fromkeys(("strategy", "noise", "stream"), (str,))
    | dict.fromkeys(("options", "guarantee"), (dict,))
    | {"adaptive": (dict, type(None)), "event": (dict, type(None)), "round": (int,), "sum": (str,), "previous": (str,)}
)
"""The keys of an entry's line, and the types of their values; strategies that ship have no ``event``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Record one release of a round of a run; a round released twice with different noise has two entries.

    Attributes:
        round: the round, from 1.
        terms: the release record.
        sum: a keyed hash of the sum before seeded noise; random for secure noise, so that copies of a run which went
            on separately differ.
    """

    run: str
    round: int
    terms: ReleaseRecord
    sum: str = ""

    def exposed(self, adjacency: Adjacency) -> Adjacency:
        """Return the adjacency to account for in this release if a user and an entity of ``adjacency`` are protected.

        Its bounds alone decide whether sentences are displaced or have weights: a caller may not know.
        """
        return self.terms.mechanism.exposed(self.terms.guarantee.seen(adjacency))


class Ledger:
    """Read and write the ledger of one run, with a single writer.

    :meth:`create` starts the ledger of a new run, :meth:`open` continues one, :meth:`read` reads one.
    """

    def __init__(self, folder: Path, run: str, ancestors: Sequence[LedgerHead], computation: str) -> None:
        self.folder = folder
        self.run = run
        self.ancestors = tuple(ancestors)
        self.computation = computation
        self._hashes = [sha256_of_json(self._first_line())]  # of the first line, and of each entry
        self._entries: list[Entry] = []
        self._terms: dict[int, ReleaseRecord] = {}
        self._sums: dict[int, list[str]] = {}  # of each round, in order
        self._last_round = 0
        self._first_repeated = math.inf  # the first round with several entries of seeded noise

    @classmethod
    def create(cls, folder: Path, ancestors: Sequence[LedgerHead] = ()) -> Ledger:
        """Start the ledger of a new run with a random identity; LedgerError if ``folder`` has one.

        ``ancestors`` are the heads of the runs on whose releases its initial model rests, oldest first.
        """
        ledger = cls(folder, secrets.token_hex(16), ancestors, "")
        if ledger.file.exists():
            raise LedgerError(f"{ledger.file}: exists; a new run needs a folder without a ledger")
        ledger._write_first_line()
        return ledger

    @classmethod
    def open(cls, folder: Path) -> Ledger:
        """Check the ledger of a run that continues, and repair the traces of a crash.

        Raises:
            LedgerError: see :meth:`read`.
        """
        ledger = cls.read(folder)
        with ledger.file.open("rb+") as file:  # a half line was never released
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())
        ledger._write_head()  # it may be one entry behind
        return ledger

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """Check the ledger of a run, without writing anything.

        Raises:
            LedgerError: if it is missing, cut off, changed or reordered; the message names file and line.
        """
        file, head_file = folder / LEDGER_FILE, folder / HEAD_FILE
        head = _read_head(head_file)
        try:
            *lines, tail = read_bytes(file, MOST_LOG_BYTES).split(b"\n")
        except FileNotFoundError as error:
            raise LedgerError(f"{file}: is missing; what the run released is not known") from error
        if not lines:
            raise LedgerError(f"{file}, line 1: is cut off; {head_file} counts {head['entries']} entries")
        ledger = _read_lines(file, lines)
        complete, counted = len(ledger.entries), head["entries"]
        if ledger.run != head["run"]:
            raise LedgerError(f"{file}, line 1: is that of another run than {head_file}")
        if complete < counted:
            raise LedgerError(f"{file}, line {complete + 2}: is cut off; {head_file} counts {counted} entries")
        if complete > counted + 1 or (complete > counted and tail):
            raise LedgerError(f"{file}, line {counted + 2}: was added; {head_file} counts {counted} entries")
        # Before the first release a run may be killed between the line that binds it and the head.
        if counted and ledger._hashes[counted] != head["last"]:
            raise LedgerError(f"{file}, line {counted + 1}: was changed; {head_file} has another last hash")
        return ledger

    def bind(self, computation: str) -> None:
        """Bind the ledger of a run that has released nothing to what its releases are computed from.

        ``computation`` is a hash of all that, which a reader of the ledger cannot test guesses against. LedgerError if
        the run has released something.
        """
        if self._entries:
            raise LedgerError(f"{self.file}: has releases; it cannot be bound any more")
        self.computation = computation
        self._hashes = [sha256_of_json(self._first_line())]
        self._write_first_line()

    @property
    def file(self) -> Path:
        """Return the path of the ledger."""
        return self.folder / LEDGER_FILE

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return all releases, in order."""
        return tuple(self._entries)

    @property
    def last_round(self) -> int:
        """Return the latest round that was released; 0 before the first."""
        return self._last_round

    @property
    def head(self) -> LedgerHead:
        """Return the run's identity, the number of entries and the last hash, as ``ledger.head.json``."""
        return {"run": self.run, "entries": len(self._entries), "last": self._hashes[-1]}

    def check_head(self, head: Mapping[str, object]) -> None:
        """Raise LedgerError unless the ledger still begins with the entries of a head that was kept."""
        count = head.get("entries")
        if type(count) is not int or not 0 <= count < len(self._hashes) or self._hashes[count] != head.get("last"):
            raise LedgerError(f"{self.file}: is not the ledger whose head hash was kept after {count} entries")

    def continues(self, other: Ledger) -> bool:
        """Return whether ``other`` is a copy of this ledger whose entries are all or the first of its entries."""
        return self.run == other.run and self._hashes[: len(other._hashes)] == other._hashes

    def releases(self, up_to: int) -> int:
        """Return the number of releases of the rounds 1 to ``up_to``; a round with fresh noise may have several."""
        if up_to >= self._last_round:  # after every round of a run
            return len(self._entries)
        return sum(entry.round <= up_to for entry in self._entries)

    def may_repeat_sums(self, up_to: int) -> bool:
        """Return whether a round up to ``up_to`` has several entries of seeded noise (:func:`has_repeated_sums`)."""
        return self._first_repeated <= up_to

    def is_repeated(self, server_round: int, total: str) -> bool:
        """Return whether seeded noise was already added to another sum of a round than that with the hash ``total``."""
        before = self._sums.get(server_round, [])
        return bool(before) and total not in before

    def record_release(self, terms: ReleaseRecord, server_round: int, total: str = "") -> str:
        """Record that ``server_round`` is about to be released; the entry is on disk when this returns.

        A round repeated with seeded noise and the same sum is the same release and is recorded once. Repeated with
        another sum or with secure noise it is another release and gets another entry.

        ``total`` is a keyed hash of the sum to which seeded noise is added; it is not read for secure noise.

        Returns:
            The name of the stream of seeded noise: empty for the first sum of a round, ``total`` for any other.

        Raises:
            LedgerError: if the round was released with other settings, or an earlier round is missing.
        """
        file, before = self.file, self._terms.get(server_round)
        if before is not None and before != terms:
            old, new = before.record(), terms.record()
            differ = (f"{name} {old[name]} then, {new[name]} now" for name in old if old[name] != new[name])
            raise LedgerError(f"{file}: round {server_round} was released with other settings ({', '.join(differ)})")
        if terms.noise == "secure":
            total = secrets.token_hex(16)
        anew = terms.noise == "secure" or self.is_repeated(server_round, total)
        if before is not None and not anew:
            return self._stream_of(server_round, total)
        if not 1 <= server_round <= self.last_round + 1:
            raise LedgerError(f"{file}: round {server_round} does not follow round {self.last_round}")
        entry = Entry(self.run, server_round, terms, total)
        recorded = {name: "inf" if value == math.inf else value for name, value in terms.record().items()}
        values = {"round": server_round, **recorded, "sum": total, "previous": self._hashes[-1]}
        own = sha256_of_json(values)
        with naming(file), file.open("ab") as stream:
            stream.write(canonical_json(values | {"hash": own}) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._add(entry, own)
        self._write_head()
        return self._stream_of(server_round, total)

    def _add(self, entry: Entry, own: str) -> None:
        self._entries.append(entry)
        self._hashes.append(own)
        self._terms[entry.round] = entry.terms
        self._last_round = max(self._last_round, entry.round)
        if entry.terms.noise == "seeded":
            self._sums.setdefault(entry.round, []).append(entry.sum)
            if len(self._sums[entry.round]) > 1:
                self._first_repeated = min(self._first_repeated, entry.round)

    def _stream_of(self, server_round: int, total: str) -> str:
        """Return the name of the noise's stream for a recorded sum of a round."""
        return "" if self._sums.get(server_round, [total])[0] == total else total

    def _first_line(self) -> dict[str, object]:
        return {"run": self.run, "ancestors": list(self.ancestors), "computation": self.computation}

    def _write_first_line(self) -> None:
        replace_file(self.file, canonical_json(self._first_line() | {"hash": self._hashes[0]}) + b"\n")
        self._write_head()

    def _write_head(self) -> None:
        replace_file(self.folder / HEAD_FILE, canonical_json(self.head) + b"\n")


def epsilon_of(entries: Sequence[Entry], adjacency: Adjacency, delta: float, *, robust: bool = False) -> float:
    """Return ε of all ``entries`` together, of one run or of several on one corpus; inf if one had no noise.

    ``entries`` come in any order; a ``robust`` ε holds even if the entity was not detected (q_e := 1).
    """
    return _composed(entries, delta, lambda entry, event: ProtectedUnit(adjacency, robust))


def epsilon_of_any(entries: Sequence[Entry], delta: float, corpora: Mapping[str, str] | None = None) -> float:
    """Return ε of any user with any entity of all ``entries`` together; inf if one enforced no bound on entities.

    Entities on a list of public names are not protected; inf if the runs have different lists. An entity of which a
    run's tagger marks no sentence at all is within no bound there, and not covered.

    Args:
        corpora: the fingerprint of each run's corpus; a run without one may be on any.
    """
    for entry in entries:
        event = entry.terms.mechanism.event()
        if event is None or not entry.terms.guarantee.covers_any_entity or not _units(entry, event):
            return math.inf
    if len(public_lists(entry.terms.guarantee for entry in entries)) > 1:
        return math.inf
    corpus_of = {entry.run: (corpora or {}).get(entry.run, entry.run) for entry in entries}

    def epsilon_at(units: Mapping[str, int], *, robust: bool) -> float:
        def unit_of(entry: Entry, event: accountant.RoundEvent) -> ProtectedUnit:
            return _units(entry, event)[units[corpus_of[entry.run]]].counted(missed=robust)

        return _composed(entries, delta, unit_of)

    return max(epsilon_at(units, robust=robust) for units, robust in unit_choices(corpus_of.values()))


def unit_choices(corpora: Iterable[str]) -> Iterator[tuple[dict[str, int], bool]]:
    """Yield which of :meth:`Guarantee.units` to count on each corpus, and whether as if missed; the largest ε holds.

    Corpora may have entities of different taggers: what is an entity in one may be a sentence without any in another,
    so that every combination counts. Of many corpora an entity that is missed everywhere dominates all combinations.
    """
    distinct = sorted(set(corpora))
    if len(distinct) > _MOST_COMBINED:
        yield dict.fromkeys(distinct, 0), True
        return
    for units in itertools.product((0, 1), repeat=len(distinct)):
        yield dict(zip(distinct, units, strict=True)), False


def _units(entry: Entry, event: accountant.RoundEvent) -> tuple[ProtectedUnit, ...]:
    population = entry.terms.mechanism.population
    return entry.terms.guarantee.units(clips_sentences=event.clips_sentences, population=population)


UnitOf = Callable[[Entry, accountant.RoundEvent], ProtectedUnit]
"""Give the unit for which a release counts."""


def _composed(entries: Sequence[Entry], delta: float, unit_of: UnitOf) -> float:
    parts = parts_of(entries, unit_of)
    return math.inf if parts is None else accountant.composed_epsilon(parts, delta)


def parts_of(entries: Sequence[Entry], unit_of: UnitOf) -> list[accountant.Part] | None:
    """Return the kinds of releases and their numbers for the accountant; None if a release had hardly any noise.

    Raises:
        LedgerError: if the epochs of a run differ in length, so that their allocations are not independent.
    """
    parts: Counter[tuple[accountant.RoundEvent | EpochEvent, Adjacency]] = Counter()
    epochs: dict[tuple[str, int, int], list[tuple[float, Adjacency]]] = {}  # by run, length and number
    lengths: dict[str, int] = {}
    for entry, sums in _rounds_of(entries):
        event = entry.terms.mechanism.event()
        if event is None or entry.terms.mechanism.noise_multiplier < SMALLEST_NOISE * math.sqrt(sums):
            return None
        event = replace(event, noise_multiplier=event.noise_multiplier / math.sqrt(sums))
        unit = unit_of(entry, event)
        accounted, adjacency = (event.robust() if unit.robust else event), entry.exposed(unit.adjacency)
        if event.epoch_rounds is None:
            parts[accounted, adjacency] += 1
        else:
            if (length := lengths.setdefault(entry.run, event.epoch_rounds)) != event.epoch_rounds:
                raise LedgerError(
                    f"epoch_rounds is {event.epoch_rounds}; allowed: {length}, as in earlier rounds of the run"
                )
            epoch = (entry.run, event.epoch_rounds, (entry.round - 1) // event.epoch_rounds)
            epochs.setdefault(epoch, []).append((event.noise_multiplier, adjacency))
    for (_, length, _), rounds in epochs.items():
        # The smallest noise counts; a run has one guarantee, so all its rounds have the same adjacency.
        parts[EpochEvent(min(z for z, _ in rounds), length, len(rounds)), rounds[0][1]] += 1
    return [(*kind, count) for kind, count in parts.items()]


def has_repeated_sums(entries: Sequence[Entry]) -> bool:
    """Return whether a round of a run released several sums under seeded noise."""
    return any(count > 1 for _, count in _rounds_of(entries))


def _rounds_of(entries: Sequence[Entry]) -> Iterator[tuple[Entry, int]]:
    """Yield the entries, those of several sums of one round of a run once, with the number of sums.

    k sums of one round have the same samples and independent noise. Together they are one release of k times the
    coordinates, in which a contribution is at most √k times as long: it counts as one round of noise z/√k
    (docs/privacy-accounting.md, section 9).
    """
    sums = Counter((entry.run, entry.round, entry.terms) for entry in entries if entry.terms.noise == "seeded")
    for entry in entries:
        if entry.terms.noise == "secure":
            yield entry, 1
        elif count := sums.pop((entry.run, entry.round, entry.terms), 0):
            yield entry, count


def together(ledgers: Sequence[Ledger]) -> list[Entry]:
    """Return the entries of several runs on one corpus, which must be independent of one another.

    Copies of one run that went on separately (forks) have their common entries once, and then those of each: fresh
    samples and noise make them independent, and the same sum under the same seeded noise is the same release.

    Raises:
        LedgerError: two runs drew samples and noise from one seed, or two copies of a run added the same noise to two
            sums: an adversary who observes both can subtract one from the other, and no ε holds for the two together.
    """
    seeds: dict[str, Ledger] = {}
    known: dict[str, set[str]] = {}
    sums: dict[tuple[str, int], str] = {}
    entries: list[Entry] = []
    for ledger in ledgers:
        file, released = ledger.file, known.setdefault(ledger.run, set())
        for stream in {entry.terms.stream for entry in ledger.entries} - {""}:
            other = seeds.setdefault(stream, ledger)
            if other.run != ledger.run:
                raise LedgerError(f"{file}: has its samples from the same seed as {other.file}, so no ε holds for both")
        for number, (total, *_) in ledger._sums.items():
            if sums.setdefault((ledger.run, number), total) != total:
                raise LedgerError(
                    f"{file}: round {number} has another sum than in another copy of the run, under the same noise, so "
                    "no ε holds for both"
                )
        for entry, own in zip(ledger.entries, ledger._hashes[1:], strict=True):
            if own not in released:
                released.add(own)
                entries.append(entry)
    return entries


def longest(ledgers: Sequence[Ledger]) -> list[Ledger]:
    """Return the ledgers without those that another one continues or equals, in order."""
    kept: list[Ledger] = []
    for ledger in sorted(ledgers, key=lambda ledger: -len(ledger.entries)):
        if not any(other.continues(ledger) for other in kept):
            kept.append(ledger)
    return [ledger for ledger in ledgers if any(ledger is other for other in kept)]


def since(entries: Sequence[Entry], server_round: int) -> list[Entry]:
    """Return the entries from the first release of ``server_round`` on: those of a user who joined in that round."""
    for position, entry in enumerate(entries):
        if entry.round == server_round:
            return list(entries[position:])
    last = max((entry.round for entry in entries), default=0)
    raise LedgerError(f"round {server_round} is not in the ledger; allowed: a released round, 1 to {last}")


def _read_lines(file: Path, lines: Sequence[bytes]) -> Ledger:
    """Return the ledger of complete lines, the first of which names the run; LedgerError names a line of no chain."""
    first, _ = _checked(lines[0], f"{file}, line 1")
    kinds = {name: type(value) for name, value in first.items()}
    if kinds != {"run": str, "ancestors": list, "computation": str} or not all(map(is_head, first["ancestors"])):
        raise LedgerError(f"{file}, line 1: does not begin a ledger of this version of fl-sim")
    ledger = Ledger(file.parent, first["run"], first["ancestors"], first["computation"])
    for number, line in enumerate(lines[1:], start=2):
        where = f"{file}, line {number}"
        values, own = _checked(line, where)
        if values.get("previous") != ledger._hashes[-1]:
            raise LedgerError(f"{where}: does not follow the line before it; lines were removed, added or reordered")
        ledger._add(_entry(ledger.run, values, where), own)
    return ledger


def _checked(line: bytes, where: str) -> tuple[dict[str, Any], str]:
    """Return the values of a line, and its hash, which must be theirs."""
    values = _object(line, where)
    own = values.pop("hash", None)
    if own != sha256_of_json(values):
        raise LedgerError(f"{where}: was changed (its hash does not match)")
    return values, str(own)


def _entry(run: str, values: Mapping[str, Any], where: str) -> Entry:
    if not _KINDS.keys() - {"event"} <= values.keys() <= _KINDS.keys():
        raise LedgerError(f"{where}: is no entry of this version of fl-sim (other fields)")
    given: dict[str, Any] = {name: math.inf if value == "inf" else value for name, value in values.items()}
    wrong = sorted(name for name, value in given.items() if type(value) not in _KINDS[name])
    if wrong:
        raise LedgerError(f"{where}: is corrupt ({', '.join(wrong)} of the wrong type)")
    number, total, _ = (given.pop(name) for name in ("round", "sum", "previous"))
    if given["noise"] == "secure" and not total:  # copies of the run could not be told apart
        raise LedgerError(f"{where}: is corrupt (sum is empty)")
    try:
        return Entry(run, number, ReleaseRecord.from_record(given), total)
    except (PrivacyError, PluginError) as error:
        raise LedgerError(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:  # a part with other fields, or with text where a number is needed
        raise LedgerError(f"{where}: is corrupt ({one_line(error)})") from error


def _read_head(file: Path) -> LedgerHead:
    try:
        content = read_bytes(file)
    except FileNotFoundError as error:
        raise LedgerError(f"{file}: is missing; there is no ledger, or an incomplete one") from error
    head = _object(content, f"{file}, line 1")
    if not is_head(head):
        raise LedgerError(f"{file}, line 1: is corrupt ('run', 'entries' and 'last' are expected)")
    return head


def is_head(value: Any) -> TypeGuard[LedgerHead]:
    """Return whether ``value``, read from a JSON file, is the head of a ledger.

    A run's identity is of letters and digits: files and folders are named after it.
    """
    kinds = {name: type(item) for name, item in value.items()} if isinstance(value, dict) else {}
    return kinds == {"run": str, "entries": int, "last": str} and value["run"].isalnum() and value["entries"] >= 0


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        return json_object(content)
    except ValueError as error:
        raise LedgerError(f"{where}: is corrupt (no JSON object)") from error
