"""Try nodes that hold their own text on loopback: TLS, known nodes, a folder and a key each, and what is refused.

    python scripts/try_text_deployment.py [--keep DIR]

It divides the bundled corpus over two nodes (examples/text_uedp), starts a SuperLink and two SuperNodes with TLS and
node authentication, and runs examples/text_uedp on them. Then it trains on the joint corpus in one place (`fl-sim run`)
and compares the models. At last a node has another key, and one no folder. It needs a few minutes and no network, and
ends every process that it started.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from try_deployment import ROOT, Deployment, DeploymentError, deployment, main

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import RunFolder

EXAMPLE = ROOT / "examples" / "text_uedp"
SAME_MODEL = 2e-6
"""The largest distance of two models, relative to their total update (docs/flower.md)."""

_LEARNING_RATE = 0.01
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "privacy.q_s": 0.05,
    "privacy.q_e": 0.5,
    "model.hidden": 16,
    "model.layers": 1,
    "model.heads": 2,
    "server.optimizer": "sgd",
    "server.learning_rate": _LEARNING_RATE,
    "evaluation.max_sentences": 20,
}
_NODES = ("node1", "node2")


def start_nodes(link: Deployment, changes: dict[str, dict[str, str]] | None = None) -> None:
    """Start the two SuperNodes with a node config each, and wait until they are online.

    Args:
        link: the SuperLink.
        changes: values of a node's config that differ, by the name of the node.
    """
    for place, name in enumerate(_NODES):
        data = link.folder / "data"
        config = {"corpus-path": str(data / f"node-{place}"), "entity-key": str(data / "key")}
        config |= (changes or {}).get(name, {})
        words = as_run_config({"partition-id": place} | config)
        trusted = ["--root-certificates", "ca.crt", "--auth-supernode-private-key", name]
        link.start_node(name, *trusted, "--node-config", words)
    for name in _NODES:
        link.wait_for(name, "SuperNode ID")


def stop_nodes(link: Deployment) -> None:
    """End the SuperNodes, and wait until they have."""
    for name in _NODES:
        process = link.processes.pop(name)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def run(link: Deployment, **settings: Any) -> str:
    """Run the example on the deployment; return what it printed."""
    values = SETTINGS | {"nodes": 2} | {key.replace("__", "."): value for key, value in settings.items()}
    return link.flwr("run", str(EXAMPLE), "deployment", "--stream", "--run-config", as_run_config(values))


def as_run_config(values: dict[str, Any]) -> str:
    """Return settings as the text that ``--run-config`` and ``--node-config`` take."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())


def simulated(folder: Path) -> RunFolder:
    """Return the same training on the joint corpus, in one place."""
    own = {"privacy.entity_key": str(folder / "data" / "key"), "engine.name": "inline", "engine.nodes": 2}
    return simulation.run(RunConfig.from_mapping(SETTINGS | own | {"out": str(folder / "simulated")}))


def apart(one: RunFolder, other: RunFolder) -> float:
    """Return the distance of two runs' models, relative to the total update of the first."""
    models = [Checkpoint.read(run.checkpoint_dir) for run in (one, other)]
    before, after = (model.vector.astype(np.float64) for model in models if model is not None)
    return float(np.linalg.norm(before - after) / (_LEARNING_RATE * one.metrics()["update_norm"].sum()))


def expect(said: str, words: str) -> str:
    """Return the line with ``words``; raise DeploymentError if there is none."""
    line = next((line for line in said.splitlines() if words in line), None)
    if line is None:
        raise DeploymentError(f"never said {words!r}:\n{said[-3000:]}")
    return re.sub(r"^.*?(?=fl-sim )", "", line).strip()


def try_all(folder: Path) -> None:
    """Run on the nodes' own text, compare with the joint corpus, and print what came of it."""
    (folder / "data").mkdir()
    make_nodes(folder / "data")
    with deployment(folder) as link:
        for name in _NODES:
            link.flwr("supernode", "register", str(folder / f"{name}.pub"), "deployment")
        start_nodes(link)
        print(expect(run(link, out="deployed"), "fl-sim DONE"))
        results = folder / "flwr" / "fl-sim-runs"
        distance = apart(simulated(folder), RunFolder.open(results / "deployed"))
        print(f"distance from the model of fl-sim run on the joint corpus: {distance:.2g} of the total update")
        if distance > SAME_MODEL:
            raise DeploymentError(f"the models differ by {distance:.2g}; allowed: at most {SAME_MODEL:g}")
        stop_nodes(link)
        (folder / "data" / "other").write_text("another key of 23 bytes\n")
        start_nodes(link, {"node2": {"entity-key": str(folder / "data" / "other")}})
        print(expect(run(link, out="refused"), "node 1 has another entity key than node 0"))
        stop_nodes(link)
        start_nodes(link, {"node1": {"corpus-path": ""}})
        print(expect(run(link, out="refused"), "corpus-path of node 0 is not given"))
        if list(results.glob("refused*")):
            raise DeploymentError("a refused run left a folder")


def make_nodes(folder: Path) -> None:
    """Divide the bundled corpus over two folders, as examples/text_uedp does."""
    sys.path.insert(0, str(EXAMPLE))
    from make_nodes import make_nodes as divide  # type: ignore[import-not-found]

    divide(Corpus.open("bundled"), folder, 2)


if __name__ == "__main__":
    sys.exit(main(try_all, __doc__))
