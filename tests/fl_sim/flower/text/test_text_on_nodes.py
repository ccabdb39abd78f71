"""Nodes that hold their own users' text train the model of a simulation on the joint corpus."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fl_sim.cli.main import main
from fl_sim.config import ConfigError
from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines.grids import GridError, InlineGrid
from fl_sim.flower.text import held_text
from fl_sim.flower.text.held_text import ENROL_MESSAGE, NodesError
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import Ledger
from tests.e2e.small_runs import SAME_MODEL, apart, measured, model_of
from tests.fl_sim.flower.text.nodes import LEARNING_RATE, Nodes, divide, users_of

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


# --- the same model --------------------------------------------------------------------------------------------------

USER_LEVEL = {"privacy__strategy": "user_level", "privacy__user_cap": None, "privacy__q_s": None, "privacy__q_e": None}
NO_BOUNDS = {"privacy__entity_bound": "unbounded", "privacy__user_sentences": "unbounded"}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"privacy__q_u": 0.5}, id="users are sampled"),
        pytest.param(USER_LEVEL | NO_BOUNDS, id="user_level"),
        pytest.param({}, id="all users", marks=pytest.mark.nightly),
        pytest.param({"privacy__entity_bound_by": "weights"}, id="weights", marks=pytest.mark.nightly),
        pytest.param(NO_BOUNDS, id="no bounds", marks=pytest.mark.nightly),
    ],
)
def test_text_on_nodes_trains_the_model_of_the_simulation(nodes: Nodes, changes: dict[str, Any]) -> None:
    joint, divided = nodes.simulate("joint-run", **changes), nodes.run("divided", **changes)
    assert apart(joint, divided, LEARNING_RATE) < SAME_MODEL
    for figure in ("cohort_users", "cohort_sentences", "clipped_fraction"):
        assert [row.get(figure) for row in measured(joint)] == [row.get(figure) for row in measured(divided)]
    epsilons = [column for column in joint.metrics() if column.startswith("epsilon")]
    assert joint.metrics()[epsilons].equals(divided.metrics()[epsilons])


@pytest.mark.system
def test_a_plan_for_a_target_is_that_of_the_simulation(nodes: Nodes) -> None:
    target = {"privacy__noise_multiplier": None, "privacy__target_epsilon": 8.0}
    joint, divided = (run.result or {} for run in (nodes.simulate("joint-run", **target), nodes.run("run", **target)))
    assert joint["plan"] == divided["plan"]
    assert joint["kept"]["sentences"] == divided["kept"]["sentences"] < 1


CLASSIFIER = {
    "task": "classification", "model__name": "awd-lstm", "model__hidden": 16, "model__embedding": 8,
    "model__layers": None, "model__heads": None,
}  # fmt: skip


def _classified(nodes: Nodes, held_out: tuple[str, ...]) -> None:
    """Give sentences classes, of which the second node has one alone, and write the nodes' folders anew."""
    names = users_of(nodes.joint)

    def class_of(sentence: Sentence) -> str:
        if sentence.split != "train":
            return held_out[len(sentence.text) % len(held_out)]
        return "rain" if sentence.user in names[2:] or not sentence.mentions else "boats"

    said = [replace(s, target=class_of(s)) for s in sentences_of(Corpus.open(nodes.joint))]
    for folder in ("joint", "node-0", "node-1"):
        shutil.rmtree(nodes.folder / folder)
    write_corpus(said, nodes.joint, name="classified")
    divide(nodes.joint, (names[:2], names[2:]), nodes.folder)


@pytest.mark.nightly
def test_classes_are_those_of_the_held_out_text(nodes: Nodes) -> None:
    _classified(nodes, ("boats", "rain"))
    joint, divided = nodes.simulate("joint-run", **CLASSIFIER), nodes.run("divided", **CLASSIFIER)
    assert Corpus.open(nodes.folder / "node-1").classes == ("rain",)
    assert apart(joint, divided, LEARNING_RATE) < SAME_MODEL


def test_a_class_that_the_held_out_text_lacks_is_refused(nodes: Nodes) -> None:
    _classified(nodes, ("boats", "snow"))
    with pytest.raises(NodesError, match="class 'rain' of this node is none of the held-out text's; allowed: boats, s"):
        nodes.run("run", **CLASSIFIER)


@pytest.mark.system
def test_the_server_keeps_pseudonyms_alone(nodes: Nodes) -> None:
    run = nodes.run("run")
    record = Corpus.open(nodes.folder / "run-graph")
    assert {text for text in record.texts("train").to_pylist() if set(text) - set("0123456789abcdef -")} == set()
    assert not {"user 0", "ada"} & {*record.users("train")["user"], *record.entities("train")["entity"]}
    assert record.users("train")["sentences"].tolist() == Corpus.open(nodes.joint).users("train")["sentences"].tolist()
    assert (run.result or {})["corpus"]["users"] == len(users_of(nodes.joint))


@pytest.mark.system
def test_no_message_to_a_node_has_the_seed_of_the_run(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    answer = InlineGrid._answer

    def read(grid: InlineGrid, message: Message) -> Message:
        sent.append(str(message.content.config_records))
        return answer(grid, message)

    monkeypatch.setattr(InlineGrid, "_answer", read)
    run = nodes.run("run", seed=730_519_264)
    assert len(sent) > 4
    assert not [content for content in sent if "730519264" in content]
    assert "against them it is that of q_e = q_s = 1" in " ".join((run.result or {})["warnings"])


# --- resume, absent and late nodes -----------------------------------------------------------------------------------


@pytest.mark.system
def test_a_run_resumes_with_the_model_of_one_without_a_stop(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nodes.run("whole", rounds=3)
    _stopped_in_round(nodes, monkeypatch, "run", 2, rounds=3)
    nodes.run("run", {"resume": str(nodes.folder / "run")}, rounds=3)
    assert np.array_equal(model_of(whole), model_of(RunFolder.open(nodes.folder / "run")))


@pytest.mark.system
def test_a_folder_that_changed_since_the_stop_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    _stopped_in_round(nodes, monkeypatch, "run", 2, rounds=3)
    _write_again(nodes.folder / "node-1", lambda text: text.replace("boats", "ships"))
    with pytest.raises(NodesError, match=r"node 1: folder, entity key or model has changed .*; allowed: as it was"):
        nodes.run("run", {"resume": str(nodes.folder / "run")}, rounds=3)
    assert RunFolder.open(nodes.folder / "run").last_round == 1


@pytest.mark.system
def test_a_folder_that_changes_between_rounds_counts_as_zero(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def change(number: int) -> None:
        if number == 2:
            _write_again(nodes.folder / "node-1", lambda text: text.replace("boats", "ships"))

    _before_each_round(monkeypatch, change)
    rows = measured(nodes.run("run", rounds=2))
    assert [row.get("failed_error") for row in rows] == ["nan", "nan", 1.0]
    assert "of this node has changed since the run began; allowed: as it was" in caplog.text


@pytest.mark.system
def test_an_absent_node_counts_as_zero_and_takes_part_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nodes.run("whole", rounds=3)
    hidden: set[int] = set()
    shown = InlineGrid.get_node_ids
    monkeypatch.setattr(InlineGrid, "get_node_ids", lambda grid: [n for n in shown(grid) if n not in hidden])
    _before_each_round(monkeypatch, lambda number: hidden.update({3}) if number == 2 else hidden.clear())
    rows = measured(nodes.run("run", rounds=3))
    assert [row.get("failed_silent") for row in rows] == ["nan", "nan", 1.0, "nan"]
    complete = measured(whole)
    assert [row["cohort_sentences"] == complete[number]["cohort_sentences"] for number, row in enumerate(rows)][1:] == [
        True,
        False,
        True,
    ]


@pytest.mark.nightly
def test_a_node_that_joins_late_with_other_text_is_left_out(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = [Sentence("train", user, f"{user} said so.", ()) for user in ("new", "newer")]
    write_corpus(said, nodes.folder / "node-2", name="late", needs_entities=False)
    hidden = {4}
    shown = InlineGrid.get_node_ids
    monkeypatch.setattr(InlineGrid, "get_node_ids", lambda grid: [n for n in shown(grid) if n not in hidden])
    _before_each_round(monkeypatch, lambda number: hidden.clear() if number == 2 else None)
    late = nodes.run("late", nodes=3, rounds=2)
    assert "node 2 holds nothing of this run; it is left out" in caplog.text
    assert np.array_equal(model_of(late), model_of(nodes.run("run", rounds=2)))


@pytest.mark.system
def test_a_run_without_any_of_its_nodes_ends_before_a_release(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: set[int] = set()
    shown = InlineGrid.get_node_ids
    monkeypatch.setattr(InlineGrid, "get_node_ids", lambda grid: [n for n in shown(grid) if n not in hidden])
    _before_each_round(monkeypatch, lambda number: hidden.update({2, 3} if number == 2 else ()))
    with pytest.raises(NodesError, match="no node of this run is there") as ended:
        nodes.run("run", rounds=2)
    assert f"flwr run with resume='{nodes.folder / 'run'}' goes on" in " ".join(ended.value.__notes__)
    assert len(Ledger.read(nodes.folder / "run").entries) == 1


# --- nodes that do not fit together ----------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize(
    ("run_config", "message"),
    [
        ({"corpus-path": ""}, "corpus-path of node 0 is not given; allowed: a path, in the node's config"),
        ({"entity-key": ""}, "entity-key of node 0 is not given"),
        ({"entity-key": "/no/such/key"}, "entity key /no/such/key: cannot be read"),
        ({"corpus-path": "/no/such/{partition-id}"}, "/no/such/0: no such folder; make a corpus with fl-sim prepare"),
        ({"model.tune": "bias", "seed": 5}, "model.name is 'small-gpt2' with random weights that do not train"),
        ({"corpus-path": "here"}, "corpus-path of node 0 is 'here'; allowed: an absolute path"),
        ({"nodes": 0}, "nodes is 0; allowed: an integer of at least 1"),
        ({"privacy.known": "nothing", "privacy.population": 9, "privacy.entity_bound": 3}, "mention_graph is"),
        ({"privacy.public_names": "shipped"}, "privacy.public_names is shipped; allowed with text on nodes: nothing"),
        ({"corpus.held_out_split": "public"}, "corpus.held_out_split is 'public'; allowed: train, validation"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(nodes: Nodes, run_config: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, NodesError, GridError)) as refused:
        nodes.run("run", run_config)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(nodes.folder.glob("run*"))


def test_another_key_is_noticed(nodes: Nodes) -> None:
    for number, key in enumerate((b"a key of nineteen b", b"another key of 23 bytes")):
        (nodes.folder / f"key-{number}").write_bytes(key)
    with pytest.raises(NodesError, match="node 1 has another entity key than node 0; allowed: the same on all nodes"):
        nodes.run("run", {"entity-key": str(nodes.folder / "key-{partition-id}")})


@pytest.mark.system
def test_another_model_than_the_servers_is_noticed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    held_text._model.cache_clear()
    load = held_text.ready_model
    monkeypatch.setattr(held_text, "ready_model", lambda spec, seed, task: load(spec, seed + 1, task))
    with pytest.raises(NodesError, match="node 0 has another model than the server; allowed: the same"):
        nodes.run("run")
    held_text._model.cache_clear()
    held_text._opened.cache_clear()
    assert not list(nodes.folder.glob("run*"))


def test_a_user_on_two_nodes_is_refused(nodes: Nodes) -> None:
    names = users_of(nodes.joint)
    shutil.rmtree(nodes.folder / "node-1")
    shutil.rmtree(nodes.folder / "node-0")
    divide(nodes.joint, (names[:3], names[2:]), nodes.folder)
    with pytest.raises(NodesError, match="a user is in the folders of nodes 0 and 1; allowed: all text of a user on"):
        nodes.run("run")


def test_a_folder_with_appended_parts_is_refused(nodes: Nodes) -> None:
    more = [Sentence("train", users_of(nodes.joint)[0], "It rained again.", ())]
    append_corpus(Corpus.open(nodes.folder / "node-0"), more, joined_at=1, name="more")
    with pytest.raises(NodesError, match="has appended parts; allowed for a node: a corpus of one part"):
        nodes.run("run")


def test_an_answer_that_is_no_enrolment_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = InlineGrid._answer

    def garbled(grid: InlineGrid, message: Message) -> Message:
        reply = answer(grid, message)
        if message.metadata.message_type == ENROL_MESSAGE and reply.metadata.src_node_id == 3:
            del reply.content.array_records["graph"]["users"]
        return reply

    monkeypatch.setattr(InlineGrid, "_answer", garbled)
    with pytest.raises(NodesError, match="node 3 cannot take part: its answer is malformed"):
        nodes.run("run")


@pytest.mark.system
def test_a_mention_graph_is_no_text_to_train_on_or_to_attack(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = nodes.run("run")
    _stopped_in_round(nodes, monkeypatch, "stopped", 2, rounds=3)
    capsys.readouterr()
    train = ["run", "--corpus", str(nodes.folder / "run-graph"), "--out", str(nodes.folder / "again")]
    for command in (train, ["leak", str(run.path)], ["resume", str(nodes.folder / "stopped")]):
        assert main(command) == 2
        assert "is a mention graph, whose text nodes hold; allowed: a corpus with text" in capsys.readouterr().err
    assert not (nodes.folder / "again").exists()


def _write_again(folder: Path, change: Callable[[str], str]) -> None:
    """Prepare a node's folder anew with other texts."""
    said = [Sentence(s.split, s.user, change(s.text), s.mentions, s.target) for s in sentences_of(Corpus.open(folder))]
    shutil.rmtree(folder)
    write_corpus(said, folder, name="changed")


def _before_each_round(monkeypatch: pytest.MonkeyPatch, call: Callable[[int], Any]) -> None:
    """Call ``call`` with the number of each round before its nodes are asked."""
    from fl_sim.strategies.aggregation import BoundedSumStrategy

    configure = BoundedSumStrategy.configure_train

    def configured(strategy: BoundedSumStrategy, server_round: int, *others: Any) -> Any:
        call(server_round)
        return configure(strategy, server_round, *others)

    monkeypatch.setattr(BoundedSumStrategy, "configure_train", configured)


def _stopped_in_round(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, out: str, number: int, **changes: Any) -> None:
    """Begin a run that fails in a round."""

    def fail(server_round: int) -> None:
        if server_round == number:
            raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        _before_each_round(patch, fail)
        with pytest.raises(RuntimeError, match="power cut"):
            nodes.run(out, **changes)
