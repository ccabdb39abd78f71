"""Nodes that hold their own users' text train the model of a simulation on the joint corpus."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message

from fl_sim.auditing.ledger_audit import audit_ledger
from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.declared_counts import CountsOfNodes
from fl_sim.data_prep.digests import entity_digests
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.contribution_limits import ContributionLimits
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines.grids import GridError, InlineGrid
from fl_sim.flower.text import held_text, text_client_app
from fl_sim.flower.text.held_text import ENROL_MESSAGE, HeldSpec, HeldText, NodesError, Place, Question, open_held_text
from fl_sim.flower.text.text_of_nodes import write_record
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import Ledger
from tests.e2e.small_runs import MODEL, PUBLISHED, SAME_MODEL, apart, measured, model_of
from tests.fl_sim.flower.text.nodes import KEY, LEARNING_RATE, Nodes, divide, users_of

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The nodes, by id, that no server sees."""
    ids = set[int]()
    shown = InlineGrid.get_node_ids
    monkeypatch.setattr(InlineGrid, "get_node_ids", lambda grid: [n for n in shown(grid) if n not in ids])
    return ids


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
        pytest.param({"privacy__round_counts": True}, id="rounded counts", marks=pytest.mark.nightly),
        pytest.param(NO_BOUNDS, id="no bounds", marks=pytest.mark.nightly),
    ],
)
def test_text_on_nodes_trains_the_model_of_the_simulation(nodes: Nodes, changes: dict[str, Any]) -> None:
    joint, divided = nodes.simulate("joint-run", **changes), nodes.run("divided", **changes)
    assert apart(joint, divided, LEARNING_RATE) < SAME_MODEL
    for figure in ("cohort_users", "cohort_sentences", "clipped_fraction"):
        assert [row.get(figure) for row in measured(joint)] == [row.get(figure) for row in measured(divided)]
    epsilons = [column for column in joint.metrics() if column.startswith("epsilon")]
    public = [column for column in epsilons if "entity" not in column]
    assert {"epsilon_any", "epsilon_user", "epsilon_user_unbounded"} <= set(public) < set(epsilons)
    assert joint.metrics()[public].equals(divided.metrics()[public])
    assert (joint.metrics()[epsilons] <= divided.metrics()[epsilons]).all(axis=None)


@pytest.mark.system
def test_a_plan_for_a_target_is_that_of_the_simulation(nodes: Nodes) -> None:
    target = {"privacy__noise_multiplier": None, "privacy__target_epsilon": 8.0}
    joint, divided = (run.result or {} for run in (nodes.simulate("joint-run", **target), nodes.run("run", **target)))
    assert joint["plan"] == divided["plan"]
    assert joint["guarantee"] == divided["guarantee"]
    assert joint["most_mentions"] == divided["most_mentions"]
    assert joint["kept"]["sentences"] < 1
    assert "kept" not in divided


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
def test_the_server_keeps_counts_by_pseudonym_alone(nodes: Nodes) -> None:
    run = nodes.run("run")
    record, joint = Corpus.open(nodes.folder / "run-counts"), Corpus.open(nodes.joint)
    assert set(record.texts("train").to_pylist()) == {""}
    assert len(record.ownership("train").entity_ids) == len(record.entities("train")) == 0
    assert not {*record.users("train")["user"]} & {*joint.users("train")["user"]}
    assert record.users("train")["sentences"].tolist() == joint.users("train")["sentences"].tolist()
    entities = joint.entities("train")
    told = dict(zip(entity_digests(entities["entity"].tolist(), KEY).tolist(), entities["sentences"], strict=True))
    assert CountsOfNodes.read(record).totals == told
    assert (run.result or {})["corpus"]["users"] == len(users_of(nodes.joint))


SPEC = RunConfig.from_mapping(MODEL).model.model_dump_json()
QUESTION = Question(split="train", task="next-word", model=SPEC, classes=())


def _held(folder: Path, *said: tuple[str, str]) -> HeldText:
    """A node with such sentences of users, whose words in capitals are names."""
    sentences = []
    for user, text in said:
        names = [(found.start(), found.end()) for found in re.finditer(r"[A-Z]\w+", text)]
        sentences.append(Sentence("train", user, text, tuple(Mention(*place, "PER") for place in names)))
    write_corpus(sentences, folder, name="node")
    return open_held_text(str(folder), KEY, 0, QUESTION)


def test_an_enrolment_does_not_tell_who_mentions_whom(tmp_path: Path) -> None:
    """Two folders with the same counts and other mentions give the same answer but for digests of the text."""
    one = _held(tmp_path / "1", ("u", "Ada met Bo"), ("u", "so"), ("v", "Carl"), ("v", "yes")).enrolment
    other = _held(tmp_path / "2", ("u", "Carl"), ("u", "Bo"), ("v", "well, Ada"), ("v", "no")).enrolment
    arrays = {name: array.numpy().tolist() for name, array in one.to_record().array_records["counts"].items()}
    others = {name: array.numpy().tolist() for name, array in other.to_record().array_records["counts"].items()}
    assert {name for name in arrays if arrays[name] != others[name]} == {"content"}
    assert (arrays["sentences"], arrays["mentions"]) == ([2, 2], [1, 1, 1])
    assert {name for name, value in one.facts if getattr(other.facts, name) != value} == {"identity"}


def test_a_node_weights_its_sentences_by_declared_counts_and_refuses_smaller_ones(tmp_path: Path) -> None:
    held = _held(tmp_path / "1", ("u", "Ada met Bo"), ("u", "Ada"), ("u", "so"), ("v", "Carl"), ("v", "yes"))
    ada, bo, carl = entity_digests(["ada", "bo", "carl"], KEY).tolist()

    def weights(users: tuple[int, ...], **names: int) -> list[float]:
        declared = {ada: names["ada"], bo: names["bo"], carl: names["carl"]}
        spec = HeldSpec(
            question=QUESTION,
            identity=held.enrolment.facts.identity,
            place=Place(first_user=1, users=4, first_sentence=2, sentences=8),
            limits=ContributionLimits(sentences_per_entity=2, sentences_per_user=2),
            users=users,
            names=tuple(declared[digest] for digest in sorted(declared)),
        )
        return np.asarray(held.workspace(spec).weights).tolist()

    assert weights((3, 2), ada=8, bo=4, carl=5) == pytest.approx([0, 0, 1 / 4, 1 / 4, 2 / 3, 2 / 5, 1, 0])
    assert weights((4, 2), ada=2, bo=1, carl=1) == pytest.approx([0, 0, 1 / 2, 1 / 2, 1 / 2, 1, 1, 0])
    for users, names in (((3, 2), {"ada": 1, "bo": 4, "carl": 5}), ((2, 2), {"ada": 8, "bo": 4, "carl": 5})):
        with pytest.raises(CorpusError, match=r"has declared count \d; allowed: at least [23], its sentences"):
            weights(users, **names)


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
@pytest.mark.parametrize("copies", [1, 2], ids=["other text", "more than the declared counts"])
def test_a_folder_that_changed_since_the_stop_is_refused(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    _stopped_in_round(nodes, monkeypatch, "run", 2, rounds=3)
    _write_again(nodes.folder / "node-1", copies)
    with pytest.raises(NodesError, match=r"node 1: folder, entity key or model has changed .*; allowed: as it was"):
        nodes.run("run", {"resume": str(nodes.folder / "run")}, rounds=3)
    assert RunFolder.open(nodes.folder / "run").last_round == 1


@pytest.mark.system
def test_a_folder_that_changes_between_rounds_counts_as_zero(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def change(number: int) -> None:
        if number == 2:
            _write_again(nodes.folder / "node-1")

    _before_each_round(monkeypatch, change)
    rows = measured(nodes.run("run", rounds=2))
    assert [row.get("failed_error") for row in rows] == ["nan", "nan", 1.0]
    assert "of this node has changed since the run began; allowed: as it was" in caplog.text


@pytest.mark.system
def test_an_absent_node_counts_as_zero_and_takes_part_again(
    nodes: Nodes, hidden: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = nodes.run("whole", rounds=3)
    _before_each_round(monkeypatch, lambda number: hidden.update({3}) if number == 2 else hidden.clear())
    rows = measured(nodes.run("run", rounds=3))
    assert [row.get("failed_silent") for row in rows] == ["nan", "nan", 1.0, "nan"]
    taken, complete = ([row.get("cohort_sentences") for row in run] for run in (rows, measured(whole)))
    assert [one == other for one, other in zip(taken, complete, strict=True)][1:] == [True, False, True]


@pytest.mark.system
def test_a_node_that_cannot_answer_in_the_first_round_takes_part_when_it_can(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, away = nodes.folder / "node-1", nodes.folder / "away"  # as a disk that is not mounted yet
    moves = {1: (own, away), 2: (away, own)}
    _before_each_round(monkeypatch, lambda number: shutil.move(*moves[number]) if number in moves else None)
    rows = measured(nodes.run("run", rounds=3))
    assert [row.get("failed_silent") for row in rows] == ["nan", 1.0, "nan", "nan"]


@pytest.mark.nightly
def test_a_node_that_joins_late_with_other_text_is_left_out(
    nodes: Nodes, hidden: set[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = [Sentence("train", user, f"{user} said so.", ()) for user in ("new", "newer")]
    write_corpus(said, nodes.folder / "node-2", name="late", needs_entities=False)
    hidden.add(4)
    _before_each_round(monkeypatch, lambda number: hidden.clear() if number == 2 else None)
    late = nodes.run("late", nodes=3, rounds=2)
    assert "node 2 holds nothing of this run; it is left out" in caplog.text
    assert np.array_equal(model_of(late), model_of(nodes.run("run", rounds=2)))


@pytest.mark.system
def test_a_run_without_any_of_its_nodes_ends_before_a_release(
    nodes: Nodes, hidden: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        ({"privacy.known": "graph"}, "privacy.known is graph; allowed with text on nodes: counts, which is all that"),
        ({"privacy.known": "nothing", "privacy.population": 9} | NO_BOUNDS, "known is nothing; allowed with text on"),
        ({"privacy.counts": "/counts"}, "privacy.counts is /counts; allowed with text on nodes: nothing, because"),
        (PUBLISHED | NO_BOUNDS | {"privacy.user_cap": 1.0}, "strategy is published; allowed with text on nodes: a str"),
        ({"privacy.public_names": "shipped"}, "privacy.public_names is shipped; allowed with text on nodes: nothing"),
        ({"corpus.held_out_split": "public"}, "corpus.held_out_split is 'public'; allowed: train, validation"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(nodes: Nodes, run_config: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, NodesError, GridError)) as refused:
        nodes.run("run", {key.replace("__", "."): value for key, value in run_config.items()})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(nodes.folder.glob("run*"))


def test_the_server_does_not_learn_what_an_unexpected_error_quotes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("Ada left.")

    monkeypatch.setattr(text_client_app, "open_held_text", fail)
    with pytest.raises(NodesError, match=r"node \d cannot take part: KeyError \(the node's log has its text\)$"):
        nodes.run("run")


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


def test_held_out_text_of_all_parts_is_evaluated(nodes: Nodes) -> None:
    more = [Sentence("validation", "zoe", "It rained again.", ())]
    grown = append_corpus(Corpus.open(nodes.joint), more, joined_at=1, name="more")
    enrolment = open_held_text(str(nodes.folder / "node-0"), KEY, 0, QUESTION).enrolment
    record = write_record([enrolment], "train", grown, "validation", nodes.folder / "record")
    assert record.texts("validation").to_pylist() == grown.texts("validation").to_pylist()


@pytest.mark.parametrize(
    ("name", "change", "allowed"),
    [
        ("users", None, "missing 1 required positional argument"),
        ("users", lambda users: users[:-1], "sentences are out of range; allowed: 3 int64 from 1"),
        ("content", lambda content: content.astype(np.int16), "content are int16 (4, 16); allowed: 16 bytes of each"),
        ("sentences", lambda counts: counts - counts[0], "sentences are out of range; allowed: 4 int64 from 1 to 10"),
        ("names", lambda names: names[::-1], "names are not in ascending order; allowed: each digest once"),
        ("names", lambda names: np.sort(np.append(names[1:], names[-1])), "allowed: each digest once"),
        ("names", lambda names: names - names[-1], "allowed: 4 int64 from 0 to 9223372036854775807"),
        ("mentions", lambda counts: -counts, "mentions are out of range; allowed: 4 int64 from 1 to "),
        ("mentions", lambda counts: 0 * counts, "mentions are out of range; allowed: 4 int64 from 1 to "),
        ("mentions", lambda counts: counts + 10**6, "mentions are out of range; allowed: 4 int64 from 1 to "),
        ("mentions", lambda counts: counts.astype(np.float64), "mentions are out of range; allowed: 4 int64"),
        ("mentions", lambda counts: counts[1:], "mentions are out of range; allowed: 4 int64"),
    ],
)
def test_an_answer_that_is_no_enrolment_is_refused(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any] | None, allowed: str
) -> None:
    answer = InlineGrid._answer

    def garbled(grid: InlineGrid, message: Message) -> Message:
        reply = answer(grid, message)
        if message.metadata.message_type == ENROL_MESSAGE and reply.metadata.src_node_id == 3:
            counts = reply.content.array_records["counts"]
            array = counts.pop(name)
            if change is not None:
                counts[name] = Array(np.ascontiguousarray(change(array.numpy())))
        return reply

    monkeypatch.setattr(InlineGrid, "_answer", garbled)
    with pytest.raises(NodesError) as refused:
        nodes.run("run")
    assert "node 3 cannot take part: its answer is malformed" in str(refused.value)
    assert allowed in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.system
def test_a_record_of_counts_is_read_and_is_no_text_to_train_on_or_to_attack(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = nodes.run("run")
    audit = audit_ledger(run.path)
    assert audit.holds
    assert "kept by every user; nodes weight the sentences of entities" in [check.detail for check in audit.checks]
    for command in (["report", str(run.path)], ["account", "ledger", str(run.path)]):
        assert main(command) == 0
    assert "what the bounds kept is known to nodes alone" in capsys.readouterr().out
    _stopped_in_round(nodes, monkeypatch, "stopped", 2, rounds=3)
    capsys.readouterr()
    train = ["run", "--corpus", str(nodes.folder / "run-counts"), "--out", str(nodes.folder / "again")]
    read = [[command, *words, str(run.path)] for command, *words in (["leak"], ["entities", "run"])]
    for command in (train, *read, ["resume", str(nodes.folder / "stopped")]):
        assert main(command) == 2
        assert "has counts alone, of text that nodes hold; allowed: a corpus with text" in capsys.readouterr().err
    assert not (nodes.folder / "again").exists()


def _write_again(folder: Path, copies: int = 1) -> None:
    """Prepare a node's folder anew with other texts, and so many copies of each."""
    said = [replace(s, text=s.text.replace("boats", "ships")) for s in sentences_of(Corpus.open(folder))]
    shutil.rmtree(folder)
    write_corpus(copies * said, folder, name="changed")


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
