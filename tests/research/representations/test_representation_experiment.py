"""One experiment: every system, the same seed the same record, whoever computes it; messages and split learning."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier

from fl_sim.cli import main as cli
from fl_sim.config import ConfigError
from fl_sim.research.representations.client.client_workspace import Workspace, open_data
from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.config import METHODS, ExperimentConfig, ServerSection, load_mapping
from fl_sim.research.representations.evaluation import representation_pictures
from fl_sim.research.representations.experiment_record import summary
from fl_sim.research.representations.representation_experiment import run, train_and_release
from fl_sim.research.representations.server.adversarial_training import (
    Clients,
    build_optimizer,
    train,
    training_noise,
    weight_of,
)
from fl_sim.research.representations.server.heads import Server
from fl_sim.research.representations.studies import adult_study, grid_selection, reproductions, systems_table
from fl_sim.research.representations.studies.study_runs import Options, collect_records
from fl_sim.storage.run_folder import encode
from tests.research.representations.tiny_bert import save_tiny_bert

BAG = {"data.name": "dpnr-ag", "encoder.kind": "bag", "training.batch_size": 16, "optimizer.name": "sgd"}


def configured(source: Path, method: str = "federate", **values: Any) -> ExperimentConfig:
    base: dict[str, Any] = {
        "method": method,
        "data": {"source": str(source)},
        "encoder": {"width": 8},
        "server": {"adversary": [6]},
        "training": {"epochs": 3, "batch_size": 64},
        "optimizer": {"learning_rate": 0.01},
        "attacks": {"leakage": False, "mdl": False},
    }
    if METHODS[method].layer != "none":  # type: ignore[index]
        base["privacy"] = {"epsilon": 20.0}
    return load_mapping(base).with_values(values)


def represent(settings: str) -> list[str]:
    """The words of a command with these settings and a small model."""
    small = "encoder.width=8 training.epochs=2 server.adversary=[6]"
    return ["represent", "run", *(word for one in f"{small} {settings}".split() for word in ("--set", one))]


def figures(record: dict[str, Any]) -> str:
    """All of a record but how long it took, and where."""
    return json.dumps(encode({k: record[k] for k in ("privacy", "epochs", "metrics", "data")}), sort_keys=True)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_stop_while_the_attacker_trains_records_nothing(
    name: str, code: int, small_adult: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn's network takes Ctrl-C for the end of its training: the figures would be those of half an attack."""
    backprop, out = MLPClassifier._backprop, tmp_path / "record.json"

    def stopped(self: MLPClassifier, *arguments: Any) -> Any:
        monkeypatch.setattr(MLPClassifier, "_backprop", backprop)
        signal.raise_signal(signal.Signals[name])
        return backprop(self, *arguments)

    monkeypatch.setattr(MLPClassifier, "_backprop", stopped)
    command = represent(f"data.source={small_adult} method=federate privacy.epsilon=20 attacks.mdl=false")
    assert cli.main([*command, "--out", str(out)]) == code
    assert not out.exists()


@pytest.mark.sample(5)
@pytest.mark.parametrize("method", list(METHODS))
def test_every_system_gives_a_record(method: str, small_adult: Path) -> None:
    record = run(configured(small_adult, method))
    test = record["metrics"]["test"]
    assert 0 <= test["accuracy"] <= 1
    assert set(test["groups"]) == {"sex"}
    json.dumps(encode(record), allow_nan=False)
    if METHODS[method].layer == "none":  # type: ignore[index]
        assert record["privacy"].get("epsilon_corrected", math.inf) == math.inf
    else:
        assert record["privacy"]["epsilon_claimed"] == pytest.approx(20.0)
        expected = 160.0 if METHODS[method].layer == "dpnr" else 20.0  # type: ignore[index]
        assert record["privacy"]["epsilon_corrected"] == pytest.approx(expected)


def test_the_task_is_learnt_and_the_majority_s_accuracy_is_the_commonest_class(small_adult: Path) -> None:
    longer = {"training.epochs": 15}
    learnt = run(configured(small_adult, "unconstrained", **longer))["metrics"]["test"]["accuracy"]
    data = open_data(configured(small_adult).data, 0)
    majority = run(configured(small_adult, "majority"))["metrics"]["test"]["accuracy"]
    assert majority == pytest.approx(max(data.test.labels.mean(), 1 - data.test.labels.mean()))
    assert learnt > majority + 0.1


@pytest.mark.parametrize("method", ["federate", "inlp", "adversarial-multiple"])
def test_the_same_seed_gives_the_same_record_and_another_seed_another(method: str, small_adult: Path) -> None:
    first = run(configured(small_adult, method))
    torch.manual_seed(99)  # nothing global matters
    np.random.seed(99)  # noqa: NPY002
    assert figures(run(configured(small_adult, method))) == figures(first)
    assert figures(run(configured(small_adult, method, seed=1))) != figures(first)


def test_inlp_hides_from_the_last_layer_s_reader(small_adult: Path) -> None:
    """What attackers read is the last hidden layer, less two directions; without hidden layers what is sent."""
    deep = train_and_release(
        configured(small_adult, "inlp", **{"server.classifier": [7, 5], "training.inlp_rounds": 2})
    )
    flat = train_and_release(configured(small_adult, "inlp", **{"training.inlp_rounds": 2}))
    assert (deep.sent["test"].shape[1], deep.released["test"].shape[1]) == (8, 5)
    assert flat.released["test"].shape[1] == 8
    for trained, width in ((deep, 5), (flat, 8)):
        vectors = trained.released["test"].astype(np.float64)
        assert np.linalg.matrix_rank(vectors - vectors.mean(axis=0), tol=1e-3) <= width - 2
        predicted = trained.predict(trained.sent["test"])
        assert predicted.shape == (len(vectors),)


def test_the_encoder_s_first_layer_has_its_own_width(small_adult: Path) -> None:
    values = {"encoder.layers": 3, "encoder.first_width": 11}
    encoder = Workspace(configured(small_adult, **values)).encoder
    units = [len(p) for name, p in encoder.named_parameters() if name.endswith("weight")]
    assert (units, encoder.width) == ([11, 8, 8], 8)


def test_stopping_early_is_the_beginning_of_going_on(small_adult: Path) -> None:
    whole = run(configured(small_adult))["epochs"]
    assert run(configured(small_adult, **{"training.stop_after": 2}))["epochs"] == whole[:2]


@pytest.mark.nightly
def test_several_processes_give_the_records_of_one(small_adult: Path) -> None:
    configs = [configured(small_adult, m, seed=s) for m in ("noise", "inlp") for s in (0, 1)]
    said: list[str] = []
    alone, beside = (
        collect_records(configs, Options(small_adult, jobs=jobs), lambda *line: said.append(line[0])) for jobs in (1, 2)
    )
    assert [figures(r) for r in beside] == [figures(r) for r in alone]
    assert len(said) == 10


@pytest.mark.nightly
@pytest.mark.parametrize("trained_layers", [None, 1])
def test_a_fine_tuned_encoder_is_a_function_of_the_seed(
    trained_layers: int | None, small_persons: Path, tmp_path: Path
) -> None:
    """The model's own dropout (0.1 here) would draw from torch's global generator."""
    tuned = {"encoder.kind": "transformer", "encoder.model": str(save_tiny_bert(tmp_path)), "training.epochs": 1}
    layers = {} if trained_layers is None else {"encoder.trained_layers": trained_layers}
    config = configured(small_persons, "unconstrained", **{"data.name": "dpnr-ag"}, **tuned, **layers)
    found = []
    for number in range(2):
        torch.manual_seed(number)
        found.append(figures(run(config)))
    assert found[0] == found[1]


def test_adversaries_of_a_single_epoch_need_a_constant_weight(small_adult: Path) -> None:
    one = {"training.epochs": 1}
    with pytest.raises(
        ConfigError, match=r"training\.epochs is 1; method 'coavoux' would have adversaries of weight 0"
    ):
        configured(small_adult, "coavoux", **one)
    constant = {**one, "server.weight_schedule": "constant", "server.weight": 20.0}
    plain, defended = (run(configured(small_adult, name, **constant)) for name in ("unconstrained", "coavoux"))
    assert plain["metrics"] != defended["metrics"], "with weight 0 they are equal"


def test_split_learning_is_end_to_end_autograd(small_adult: Path) -> None:
    """One graph through encoder, layer, classifier and reversed adversary, against vectors up and gradients down."""
    config = configured(small_adult, **{"encoder.dropout": 0.3, "server.dropout": 0.2})
    data = open_data(config.data, 0)

    def server() -> Server:
        section = ServerSection(adversary=(6,), dropout=0.2, adversary_dropout=0.1)
        return Server(8, 2, 1, section, "reversal", seed=4)

    split, head = Clients(Workspace(config)), server()
    train(split, head, data, config)

    workspace, joint = Workspace(config), server()
    optimizer = build_optimizer(config.optimizer, [*workspace.encoder.parameters(), *joint.parameters()])

    from fl_sim.strategies.primitives import streams

    for epoch in range(config.training.epochs):
        order = streams.generator(config.seed, "epoch order", epoch).permutation(len(data.train))
        for number, start in enumerate(range(0, len(order), config.training.batch_size)):
            rows = order[start : start + config.training.batch_size]
            seed = streams.derived_seed(config.seed, "step", epoch, number) >> 65
            draw, scale = Draw(seed, len(rows)), training_noise(config, 8, epoch)
            z = workspace.layer(workspace.encoder(workspace.training_batch(rows, draw), draw), draw, scale)
            loss = joint.loss(
                z, torch.from_numpy(data.train.labels[rows]), torch.from_numpy(data.train.private[rows]),
                weight_of(config, epoch), draw,
            )  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(workspace.encoder.parameters(), split.workspace.encoder.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    for a, b in zip(joint.parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_training_noise_follows_the_method(small_adult: Path) -> None:
    def scale(method: str, epoch: int, **values: Any) -> float | None:
        return training_noise(configured(small_adult, method, **values), 8, epoch)

    assert scale("non-robust", 0) == 0.0
    assert scale("robust", 0) is None
    assert scale("federate", 2) is None
    # ε_n = 10/n: Laplace(1/ε_n), whatever ε of the release
    assert scale("adaptive", 0) == pytest.approx(0.1)
    assert scale("adaptive", 4) == pytest.approx(0.5)
    assert scale("adaptive", 4, **{"training.adaptive": "1/n"}) == pytest.approx(5.0)


@pytest.mark.nightly
def test_texts_with_word_dropout_through_a_bag(small_persons: Path) -> None:
    values: dict[str, Any] = {
        "data.name": "dpnr-ag",
        "encoder.kind": "bag",
        "encoder.width": 32,
        "training.epochs": 40,
        "optimizer.learning_rate": 0.05,
    }
    plain = run(configured(small_persons, "unconstrained", **values, **{"attacks.attacker": True}))
    assert plain["metrics"]["test"]["accuracy"] > 0.9
    attacker = plain["metrics"]["attacks"]["attacker"]
    assert attacker["empirical_privacy_x"] == pytest.approx(1 - attacker["accuracy"])
    hidden = run(
        configured(small_persons, "unconstrained", **values).with_values(
            {"privacy.sensitive": ["Bush", "Kerry", "Arafat", "Blair", "Sharon"], "attacks.attacker": True,
             "privacy.dropout_in_training": True}
        )
    )  # fmt: skip
    assert hidden["metrics"]["attacks"]["attacker"]["f1"] < attacker["f1"] - 0.2
    assert "published_attacker" not in plain["metrics"]["attacks"]
    assert hidden["metrics"]["test"]["accuracy"] > 0.9
    dropped = run(configured(small_persons, "robust", **values, **{"privacy.word_dropout": 1.0}))
    assert dropped["privacy"]["epsilon_claimed"] == dropped["privacy"]["epsilon_corrected"] == 0.0
    assert dropped["privacy"]["epsilon_any_text"] == pytest.approx(32 * 20)
    assert dropped["metrics"]["test"]["accuracy"] < 0.5


def test_both_attackers_of_dpnr_are_recorded_and_shown(small_persons: Path) -> None:
    values = {"data.name": "dpnr-ag", "encoder.kind": "bag", "attacks.published_attacker": True}
    alone = run(configured(small_persons, "unconstrained", **values, **{"training.epochs": 1}))
    assert "attacker" not in alone["metrics"]["attacks"]
    assert 0 <= alone["metrics"]["attacks"]["published_attacker"]["empirical_privacy_f"] <= 1
    assert "\nAttacker    of DPNR's code: accuracy" in summary(alone)
    guess = run(configured(small_persons, "majority", **values))["metrics"]["attacks"]
    assert guess["published_attacker"] == guess["attacker"]


def test_dropped_words_are_removed_or_masked(small_persons: Path) -> None:
    values = {"data.name": "dpnr-ag", "encoder.kind": "bag", "privacy.word_dropout": 0.5}
    removed, masked = (
        Workspace(configured(small_persons, "robust", **values, **{"privacy.dropped_words": how, "encoder.ngrams": n}))
        for how, n in (("removed", 1), ("masked", 2))
    )
    whole = sum(len(text.split()) for text in removed.data.test.texts)
    of_removed, of_masked = (
        workspace.read("test", workspace.layer.dropout, 0).batch(np.arange(60)) for workspace in (removed, masked)
    )
    assert len(of_removed.tokens) / whole == pytest.approx(0.5, abs=0.1)
    assert len(of_masked.tokens) == 2 * whole - 60, "words, and pairs of neighbours"
    assert of_masked.visible.float().mean() == pytest.approx(0.5, abs=0.1)
    one_word = [workspace.layer.guarantee.one_word for workspace in (removed, masked)]
    assert one_word == pytest.approx([160 + math.log(0.5), 160 + math.log(1 - 0.5**3)])
    for workspace, unit in ((removed, "word\n"), (masked, "number, mark or run of letters, as a bag splits words\n")):
        said = summary(run(workspace.config.with_values({"training.epochs": 1})))
        assert f"for two that differ in one {unit}" in said, "3.5 is three of a bag's words"


def test_a_mask_in_training_is_drawn_anew_in_every_step(small_persons: Path) -> None:
    values = {**BAG, "privacy.word_dropout": 0.5, "privacy.dropped_words": "masked"}
    rows = np.arange(20)
    alone = Workspace(configured(small_persons, "robust", **values))
    assert alone.training_batch(rows, Draw(0, 20)).visible is None, "of what is sent alone"
    both = Workspace(configured(small_persons, "robust", **values, **{"privacy.dropout_in_training": True}))
    first, again, other = (both.training_batch(rows, Draw(seed, 20)).visible for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.float().mean() == pytest.approx(0.5, abs=0.15)


def test_a_vocabulary_may_be_that_of_the_whole_file(tmp_path: Path) -> None:
    for name, count in (("train", 30), ("test", 5)):
        rows = [f"{i % 2}\tword{i} of {name}\n" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("label\tsentence\n" + "".join(rows))
    values = {**BAG, "data.name": "sst2", "data.rows": 20, "data.selection": "first"}
    sizes = [
        Workspace(configured(tmp_path, "unconstrained", **values, **{"encoder.vocabulary": name})).encoder.vectors
        for name in ("training", "file")
    ]
    assert [bag.num_embeddings for bag in sizes] == [1 + 19 + 2, 1 + 30 + 2], "the unknown word, numbers, of, train"


def test_steps_shrink_from_epoch_to_epoch(small_adult: Path) -> None:
    """The first epoch is the same; then a step of a hundredth leaves almost everything as it is."""
    values = {"optimizer.name": "sgd", "optimizer.learning_rate": 0.5}
    constant, shrinking = (
        [row["loss"] for row in run(configured(small_adult, "unconstrained", **values, **decay))["epochs"]]
        for decay in ({}, {"optimizer.decay": 1e-9})
    )
    assert shrinking[0] == constant[0]
    assert shrinking[1:] != constant[1:]
    assert abs(shrinking[2] - shrinking[1]) < abs(constant[2] - constant[1]) / 2


@pytest.mark.nightly
def test_one_training_serves_several_releases(small_persons: Path) -> None:
    releases = [{"epsilon": 0.01}, {"epsilon": 100.0}, {"epsilon": 100.0, "word_dropout": 1.0}]
    values = {**BAG, "training.epochs": 8, "optimizer.learning_rate": 2.0, "releases": releases}
    config = configured(small_persons, "non-robust", **values)
    record = run(config)
    noisy, clean, empty = record["releases"]
    assert clean["test"]["accuracy"] > 0.9 > noisy["test"]["accuracy"]
    assert empty["test"]["accuracy"] < 0.6  # no word is left
    assert noisy["privacy"]["epsilon_claimed"] == 0.01
    assert noisy["privacy"]["epsilon_corrected"] == pytest.approx(0.08)
    assert empty["privacy"]["epsilon_corrected"] == 0
    # what is trained does not depend on what is released
    assert run(config.with_values({"releases": [], "privacy.epsilon": 3.0}))["epochs"][0]["loss"] == pytest.approx(
        record["epochs"][0]["loss"], abs=1e-12
    )


def test_a_bag_s_sparse_steps_are_the_dense_ones(small_persons: Path) -> None:
    values = {**BAG, "training.epochs": 2, "optimizer.learning_rate": 1.0}
    decays = (0.0, 1e-12)  # decay touches every word
    one, other = (
        run(configured(small_persons, "unconstrained", **values, **{"optimizer.weight_decay": decay}))
        for decay in decays
    )
    for a, b in zip(one["epochs"], other["epochs"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


def test_secure_noise_cannot_be_repeated(small_adult: Path) -> None:
    config = configured(small_adult, "noise")
    workspace = Workspace(config)
    assert (workspace.release("test", None) != workspace.release("test", None)).any()
    np.testing.assert_array_equal(workspace.release("test", 3), workspace.release("test", 3))


@pytest.mark.parametrize("how", ["removed", "masked"])
def test_releases_of_a_seed_drop_the_same_words_and_secure_ones_their_own(how: str, small_persons: Path) -> None:
    """At an ε without noise to speak of, equal vectors have equal words."""
    values = {**BAG, "privacy.epsilon": 1e9, "privacy.word_dropout": 0.5, "privacy.dropped_words": how}
    workspace = Workspace(configured(small_persons, "noise", **values))

    def same(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.isclose(one, other, atol=1e-4).all(axis=1).mean())

    def again(seed: int | None) -> np.ndarray:
        return workspace.release_with("test", 2e9, 0.5, seed)[0]

    assert same(workspace.release("test", 0), again(0)) == same(again(0), again(1)) == 1
    assert same(workspace.release("test", None), workspace.release("test", None)) < 0.5
    assert max(same(again(None), again(None)), same(again(None), again(0))) < 0.5


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"methd": "noise"}, "methd: unknown key; allowed: method, seed"),
        ({"privat.epsilon": 1}, "privat: unknown key; allowed: method"),
        ({"privacy": {"eps": 1}}, "privacy.eps: unknown key; allowed: layer, epsilon"),
        ({"method": "noise"}, "privacy.epsilon is missing"),
        ({"method": "inlp", "privacy": {"epsilon": 1.0}}, "privacy.epsilon is 1; method 'inlp' has no privacy layer"),
        ({"method": "nois"}, "method is 'nois'"),
        ({"method": "inlp", "training": {"epochs": 2, "stop_after": 3}}, "training.stop_after is 3"),
        ({"method": "inlp", "releases": [{"epsilon": 1.0}]}, "releases are 1; allowed with a privacy layer"),
        ({"encoder.first_width": 9, "encoder.layers": 1}, "encoder: first_width is 9; allowed with kind = 'mlp'"),
        ({"encoder": {"kind": "bag", "first_width": 9}}, "encoder: first_width is 9"),
        (
            {"method": "noise", "privacy": {"epsilon": 1.0, "dropped_words": "masked"}},
            "privacy.dropped_words is 'masked'; allowed with encoder.kind = 'mlp': removed",
        ),
        (
            {"encoder.kind": "bag", "privacy": {"epsilon": 1.0, "dropped_words": "masked", "sensitive": ["a"]}},
            "privacy.dropped_words is 'masked'; allowed with privacy.sensitive or privacy.entities_of: removed",
        ),
        ({"encoder.ngrams": 0}, "encoder.ngrams is 0; input should be greater than or equal to 1"),
        ({"encoder.ngrams": 2}, "encoder: ngrams is 2; allowed with kind = 'bag'"),
        ({"encoder.vocabulary": "file"}, "encoder: vocabulary is 'file'; allowed with kind = 'bag'"),
        ({"data.selection": "first"}, "data: selection is 'first'; allowed with name = 'ag-news' or 'sst2'"),
        (
            {"method": "inlp", "privacy": {"layer": "l1", "epsilon": 1.0}, "server.classifier": [5]},
            "server.classifier is (5,); allowed with method 'inlp' and a privacy layer",
        ),
        (
            {"method": "inlp", "encoder.model": "minilm"},
            "encoder.model is 'minilm'; allowed with texts, which data.name = 'adult' has not",
        ),
        (
            {"method": "inlp", "encoder.run": "runs/main", "data": {"name": "table", "table": {"task": "income"}}},
            "encoder.run is 'runs/main'; allowed with texts, which data.name = 'table' has not: leave it out, or name "
            "data.table.text",
        ),
        ({"releases": [{"eps": 1.0}]}, "releases.0.epsilon is {'eps': 1.0}; field required"),
        ({"releases": [{"epsilon": 1.0, "mu": 1}]}, "releases.0.mu: unknown key; allowed: epsilon, word_dropout"),
    ],
)
def test_bad_configurations_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_mapping(values)
    assert str(error.value).startswith(said)


@pytest.mark.nightly
def test_the_command_runs_a_system_and_says_both_epsilons(
    small_adult: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "record.json"
    command = represent(f"method=robust privacy.epsilon=2 data.source={small_adult} attacks.mdl=false")
    assert cli.main([*command, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "ε claimed   2.00 by" in said.split("ε proven")[1]
    assert "ε proven    16.00 for" in said
    assert json.loads(out.read_text())["environment"]["libraries"]
    assert cli.main(["represent", "run", "--set", "methd=robust"]) == 2
    assert "methd: unknown key" in capsys.readouterr().err
    assert cli.main(["represent", "run", "--set", "seed=1", "--set", "seed=2"]) == 2
    assert "seed is 1 and 2; allowed: one value" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_reproduction_of_adult_goes_on_where_it_was_stopped(
    small_adult: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = grid_selection.Grid((1.0,), (0.5,), (8.0, 20.0), (20.0,), (2,), epochs=2, noisy_epochs=2)
    monkeypatch.setattr(systems_table, "THIN", tiny)
    said: list[str] = []
    options = Options(small_adult, (0,), work=tmp_path)
    table = reproductions.run("adult", options, lambda words, left=None: said.append(words))
    assert set(table["rows"]) == set(adult_study.PUBLISHED)
    assert table["rows"]["unconstrained"]["accuracy"]["published"] == [83.41, 0.32]
    assert table["rows"]["random"]["tpr_gap"]["measured"]["sampling_error"] > 0
    relaxations = [selection["relaxation"] for selection in table["selections"]]
    assert relaxations == [0.0, 0.01, 0.03, 0.1]
    assert "mdl" in table["selections"][0]["rows"]["noise"]
    assert {row["system"] for row in table["by_epsilon"]} == {"noise", "federate"}
    again: list[str] = []
    assert reproductions.run("adult", options, lambda words, left=None: again.append(words))["rows"] == table["rows"]
    assert [line for line in said if "to go" in line]
    assert not [line for line in again if "to go" in line]
    shown = reproductions.show(table)
    assert shown.count("Selected by") == 2
    assert "* ε of federate at relaxation threshold 1.0: 20.00 proven (20.00 claimed)\n" in shown
    assert "ε of unconstrained" not in shown
    privacy = {"layer": "l2", "epsilon_claimed": 12.0, "epsilon_any_text": 84.85}
    euclid = {**table, "chosen": [{"system": "noise", "relaxation": 0.01, "privacy": privacy}]}
    shown = systems_table.as_markdown(euclid)
    assert "* ε of noise at relaxation threshold 1.0: 84.85 proven (12.00 claimed)\n" in shown
    with pytest.raises(ConfigError, match="layer is 'dpnr'; allowed for adult: l1, l2"):
        reproductions.run("adult", dataclasses.replace(options, layer="dpnr"))


def test_the_full_grid_is_that_of_the_appendix() -> None:
    def points(system: str) -> int:
        return len(list(grid_selection.grid_points({}, system, grid_selection.FULL, "l1")))

    assert grid_selection.FULL.weights == (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.1, 2.3, 2.5, 2.7, 2.9)
    assert points("adversarial") == 15
    assert points("adversarial-multiple") == 150  # as the paper counts
    assert points("federate") == 150
    assert points("inlp") == 6
    assert points("unconstrained") == 1


def test_a_generated_corpus_needs_no_source(capsys: pytest.CaptureFixture[str]) -> None:
    command = represent("method=unconstrained data.name=toy-adult attacks.mdl=false")
    assert cli.main([*command, "--set", "data.rows=200", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["data"]["name"], record["data"]["test"]) == ("toy-adult", 40)
    assert cli.main([*command, "--set", "data.source=adult"]) == 2
    assert "data.source is adult; allowed with data.name = 'toy-adult': leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("picture", "settings", "said"),
    [
        ("p.xyz", "method=unconstrained", "p.xyz; allowed: a file that ends in .png, .svg"),
        ("p.png", "method=majority", "method 'majority' sends nothing"),
        ("p.png", "method=unconstrained data.rows=8", "toy-adult has 2 test rows; allowed: at least 3"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_refused_before_training(
    picture: str, settings: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = represent(f"data.name=toy-adult {settings}")
    assert cli.main([*command, "--picture", str(tmp_path / picture)]) == 2
    output = capsys.readouterr().err
    assert said in output
    assert "epoch" not in output


def test_the_picture_is_of_the_release_that_the_record_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, drawn = [], []
    release = Workspace.release

    def seen(workspace: Workspace, split: str, seed: int | None) -> np.ndarray:
        trained.append((split, release(workspace, split, seed)))
        return trained[-1][1]

    monkeypatch.setattr(Workspace, "release", seen)
    monkeypatch.setattr(representation_pictures, "draw_tsne", lambda *drawing: drawn.append(drawing))
    settings = "data.name=toy-adult data.rows=200 method=noise privacy.epsilon=9 privacy.secure_noise=true"
    command = represent(f"{settings} attacks.mdl=false attacks.leakage=false")
    assert cli.main([*command, "--picture", str(tmp_path / "p.png")]) == 0
    (title, vectors, *_), sent = drawn[0], [vectors for split, vectors in trained if split == "test"]
    assert title == "noise, ε = 9.00 proven"
    assert len(sent) == 1
    np.testing.assert_array_equal(vectors, sent[0])
