"""A small corpus, divided over nodes, and runs on it: as a simulation and with the text on the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.engines.engine import run_inline
from fl_sim.flower.text.text_client_app import app as client
from fl_sim.flower.text.text_server_app import app as server
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.small_runs import settings, small_corpus

KEY = b"a key of nineteen b"
LEARNING_RATE = 0.01
SETTINGS: dict[str, Any] = {
    "privacy__q_s": 0.8,
    "privacy__q_e": 0.6,
    "privacy__user_cap": 2.0,
    "privacy__entity_bound": 2,  # below the total of every name
    "privacy__user_sentences": 6,
    "server__optimizer": "sgd",
    "server__learning_rate": LEARNING_RATE,
}


def users_of(corpus: Path) -> list[str]:
    """The users who train, by id."""
    return list(Corpus.open(corpus).users("train")["user"])


def divide(corpus: Path, parts: Sequence[Iterable[str]], folder: Path) -> Path:
    """Write ``node-0``, ``node-1`` and so on with the users of each part; return the pattern of their paths."""
    for number, users in enumerate(parts):
        kept = set(users)
        said = (s for s in sentences_of(Corpus.open(corpus)) if s.split == "train" and s.user in kept)
        write_corpus(said, folder / f"node-{number}", name=f"node {number}")
    return folder / "node-{partition-id}"


class Nodes:
    """A joint corpus, its parts on two nodes, and their key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.joint = small_corpus(folder / "joint")
        names = users_of(self.joint)
        self.pattern = divide(self.joint, (names[:2], names[2:]), folder)
        self.key = folder / "key"
        self.key.write_bytes(KEY)

    def settings(self, out: str, **changes: Any) -> dict[str, Any]:
        """The run config of a run with the text on the nodes."""
        own = {"corpus-path": str(self.pattern), "entity-key": str(self.key), "nodes": 2}
        return self._values(out, SETTINGS | changes) | own

    def run(self, out: str, run_config: dict[str, Any] | None = None, nodes: int = 2, **changes: Any) -> RunFolder:
        """A run with the text on the nodes, inline."""
        run_inline(server, client, nodes, self.settings(out, **changes) | (run_config or {}))
        return RunFolder.open(self.folder / out)

    def simulate(self, out: str, **changes: Any) -> RunFolder:
        """The same as a simulation on the joint corpus."""
        named = {"privacy__entity_key": str(self.key)}
        return simulation.run(RunConfig.from_mapping(self._values(out, SETTINGS | named | changes)))

    def _values(self, out: str, changes: dict[str, Any]) -> dict[str, Any]:
        """The settings of a run, without those that are None."""
        values = settings(self.joint, self.folder / out, **changes)
        return {key: value for key, value in values.items() if value is not None}
