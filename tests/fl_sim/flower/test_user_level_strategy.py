"""What a Flower app releases: cohorts, sums, noise, ε; interrupted runs; nodes that fail, lie or come late."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from scipy import stats

import fl_sim
from fl_sim.auditing.ledger_audit import audit_ledger
from fl_sim.flower import ServerOptimizerConfig, UserLevelClipping, UserLevelDifferentialPrivacy
from fl_sim.flower.app_run import AppRun
from fl_sim.flower.enrolled_nodes import EnrolledNodes
from fl_sim.flower.private_messages import RECORD, ProtocolError, user_number
from fl_sim.flower.server_step import OptimizerStep
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.ledger import Ledger, LedgerError
from fl_sim.strategies.messages import TrainReply
from fl_sim.strategies.primitives.limits import PrivacyError
from fl_sim.strategies.primitives.noise import grid_width
from fl_sim.strategies.primitives.sampling import sampled_numbers
from tests.fl_sim.flower.apps import (
    SETTINGS,
    NodesHere,
    as_task,
    client,
    interrupted,
    model,
    moved,
    nodes_of,
    train,
    weights,
)  # fmt: skip


def _still(message: Message, context: Context) -> Message:
    return moved(message, np.zeros(message.content["arrays"]["weight"].shape))


def test_noise_has_the_stated_scale_and_no_other(tmp_path: Path) -> None:
    size, std = 20_000, 2.0 * 3.0 / (0.5 * 10)
    result, _ = train(
        tmp_path / "r", nodes_of(10, client(_still)), rounds=1, initial=model(size), clip_norm=3.0, noise_multiplier=2.0
    )
    noise = weights(result)[:size]
    assert stats.kstest(noise / std, "norm").pvalue > 0.001
    assert _pvalue_of_scale(noise, std) > 0.001
    for wrong in (0.97, 1.03):
        assert _pvalue_of_scale(noise, std * wrong) < 0.001


def _pvalue_of_scale(noise: np.ndarray, std: float) -> float:
    below = stats.chi2.cdf((noise**2).sum() / std**2, len(noise))
    return 2 * min(below, 1 - below)


def test_a_round_without_users_still_releases_noise(tmp_path: Path) -> None:
    result, _ = train(tmp_path / "r", nodes_of(3), rounds=2, sampling_rate=1e-12)
    assert np.all(weights(result) != 0)
    assert [row["cohort_users"] for row in _rows(tmp_path / "r")[1:]] == [0, 0]


@pytest.mark.system
def test_epsilon_is_that_of_poisson_subsampled_gaussians(tmp_path: Path) -> None:
    _, strategy = train(tmp_path / "r", nodes_of(10), rounds=4)
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-4)
    gaussian = dp_event.GaussianDpEvent(1.0)
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.5, gaussian), 4))
    assert strategy.epsilon() == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3)
    rows = _rows(tmp_path / "r")
    assert rows[-1]["epsilon_user"] == strategy.epsilon()
    assert len(Ledger.read(tmp_path / "r").entries) == 4


@pytest.mark.system
def test_a_round_takes_the_users_that_its_rate_draws(tmp_path: Path) -> None:
    train(tmp_path / "r", nodes_of(40), rounds=25, population=40, sampling_rate=0.25)
    taken = sum(row["cohort_users"] for row in _rows(tmp_path / "r")[1:])
    assert stats.binomtest(taken, 40 * 25, 0.25).pvalue > 0.001
    assert Ledger.read(tmp_path / "r").entries[0].terms.mechanism.q_u == 0.25


def test_updates_are_added_in_the_order_of_users_whatever_the_ids_of_their_nodes(tmp_path: Path) -> None:
    def drawn(message: Message, context: Context) -> Message:
        user = context.node_config["partition-id"]  # sizes that a sum of doubles rounds in each order differently
        return moved(message, np.random.default_rng(user).normal(size=40) * 0.01 ** (user % 10))

    app, changes = client(drawn), {"initial": model(40), "rounds": 1, "clip_norm": 100.0, "sampling_rate": 1.0}
    one, _ = train(tmp_path / "one", {1000 - k: (app, {"partition-id": k}) for k in range(20)}, **changes)
    other, _ = train(tmp_path / "other", nodes_of(20, app), **changes)
    assert (weights(one) == weights(other)).all()  # another last bit of a sum would be another noise


@pytest.mark.system
def test_an_update_is_bounded_over_all_parameters_together(tmp_path: Path) -> None:
    def far(message: Message, context: Context) -> Message:
        return moved(message, np.full(5, 1e6))

    nodes = nodes_of(1, client(far))
    changes = {"population": 1, "sampling_rate": 1.0, "noise_multiplier": 0.001, "clip_norm": 2.0}
    result, _ = train(tmp_path / "r", nodes, rounds=1, **changes)
    assert np.linalg.norm(weights(result)) == pytest.approx(2.0, rel=0.01)
    assert _rows(tmp_path / "r")[-1]["clipped_fraction"] == 1


def test_examples_do_not_weigh(tmp_path: Path) -> None:
    def weighing(message: Message, context: Context) -> Message:
        reply = moved(message, np.eye(5)[0] * 0.5)
        reply.content["metrics"]["num-examples"] = heaviest if context.node_config["partition-id"] == 0 else 1
        return reply

    models = []
    for heaviest in (1, 10**9):
        result, _ = train(tmp_path / f"{heaviest}", nodes_of(10, client(weighing)))
        models.append(weights(result))
    assert (models[0] == models[1]).all()


def test_failed_and_infinite_updates_count_as_zero(tmp_path: Path) -> None:
    def faulty(message: Message, context: Context) -> Message:
        kind = context.node_config["partition-id"] % 3
        if kind == 0:
            raise RuntimeError("no memory")
        return moved(message, np.full(5, np.nan if kind == 1 else 0.0))

    result, _ = train(tmp_path / "r", nodes_of(9, client(faulty)), rounds=1, sampling_rate=1.0, noise_multiplier=1e-3)
    assert np.isfinite(weights(result)).all()
    assert np.abs(weights(result)).max() < 0.01
    last = _rows(tmp_path / "r")[-1]
    assert (last["failed_error"], last["nonfinite"]) == (3, 3)
    said = " ".join(report_text(read_facts(RunFolder.open(tmp_path / "r"))).split())
    assert "3 replies of nodes discarded" in said
    assert "The guarantee assumes that the initial model, N and all rates are not derived from private data" in said


class _Lying(UserLevelClipping):
    """A mod that sends ten times the bound."""

    def _answer(self, message, context, call_next):  # type: ignore[no-untyped-def]
        reply = super()._answer(message, context, call_next)
        if len(reply.content.array_records):
            sent = TrainReply.from_message(reply)
            answers = str(reply.content.config_records["config"]["answers"])
            content = TrainReply(sent.vector * 0 + 10, *([sent.users] * 2), 0, 0, 0.0).to_record(_Answers(answers))
            return Message(content, reply_to=message)
        return reply


class _Answers:
    def __init__(self, identity: str) -> None:
        self.identity = identity


def test_a_lie_about_the_norm_counts_as_zero(tmp_path: Path) -> None:
    nodes = nodes_of(4) | {999: (client(mod=_Lying()), {"partition-id": 4})}
    result, _ = train(tmp_path / "r", nodes, rounds=1, sampling_rate=1.0, noise_multiplier=1e-3, population=5)
    assert np.abs(weights(result)).max() < 0.2
    assert _rows(tmp_path / "r")[-1]["failed_too_large"] == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "wrapped",
    [FedAvg, lambda: FedAdam(eta=0.1), lambda: FedAvgM(server_momentum=0.9), lambda: FedProx(proximal_mu=0.1), None],
    ids=["FedAvg", "FedAdam", "FedAvgM", "FedProx", "ours"],
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path: Path, wrapped) -> None:  # type: ignore[no-untyped-def]
    adam = ServerOptimizerConfig(optimizer="adam", learning_rate=0.1)
    changes = {"server_optimizer": adam} if wrapped is None else {}
    made = (lambda: None) if wrapped is None else wrapped
    whole, reference = train(tmp_path / "whole", nodes_of(10), rounds=4, wrapped=made(), **changes)
    interrupted(tmp_path / "r", nodes_of(10), 3, rounds=4, wrapped=made(), **changes)
    again = {**changes, "resume": True}
    resumed, strategy = train(tmp_path / "r", nodes_of(10, first=9_000), rounds=4, wrapped=made(), **again)
    assert (weights(whole) == weights(resumed)).all()
    assert strategy.epsilon() == reference.epsilon()
    assert len(Ledger.read(tmp_path / "r").entries) == 4  # the lost round was the same release
    assert [row["round"] for row in _rows(tmp_path / "r")] == [0, 1, 2, 3, 4]


def test_a_strategy_that_another_run_moved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    wrapped = FedAvgM(server_momentum=0.9)
    train(tmp_path / "a", nodes_of(5), rounds=1, wrapped=wrapped)
    with pytest.raises(PrivacyError, match="strategy is a FedAvgM that has trained before"):
        train(tmp_path / "b", nodes_of(5), wrapped=wrapped, seed=2)
    assert not (tmp_path / "b").exists()
    interrupted(tmp_path / "c", nodes_of(5), 1, wrapped=FedAvgM(server_momentum=0.9))
    with pytest.raises(PrivacyError, match="strategy is a FedAvgM that has trained before"):
        train(tmp_path / "c", nodes_of(5), wrapped=wrapped, resume=True)
    train(tmp_path / "c", nodes_of(5), wrapped=FedAvgM(server_momentum=0.9), resume=True)


@pytest.mark.parametrize("error", [ValueError("no such class"), KeyboardInterrupt()], ids=["fails", "is stopped"])
def test_a_round_is_kept_whatever_becomes_of_its_evaluation(tmp_path: Path, error: BaseException) -> None:
    def measured(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == 2 and not asked.count(2):
            asked.append(2)
            raise error
        return MetricRecord({"accuracy": 0.5})

    asked: list[int] = []
    changes = {"seed": None, "evaluate_fn": measured}  # a round without a checkpoint would be released again
    with pytest.raises(type(error)):
        train(tmp_path / "r", nodes_of(5), **changes)
    assert [row["round"] for row in _rows(tmp_path / "r")] == [0, 1, 2]
    assert _rows(tmp_path / "r")[-1]["cohort_users"] <= 5
    train(tmp_path / "r", nodes_of(5), resume=True, **changes)
    assert len(Ledger.read(tmp_path / "r").entries) == 3
    assert [row.get("accuracy") for row in _rows(tmp_path / "r")] == [0.5, 0.5, None, 0.5]
    assert "accuracy 0.5" in report_text(read_facts(RunFolder.open(tmp_path / "r")))


def test_a_run_that_is_killed_while_it_evaluates_has_its_round(tmp_path: Path) -> None:
    interrupted(tmp_path / "r", nodes_of(5), 2, before="add_row", seed=None)
    _, strategy = train(tmp_path / "r", nodes_of(5), seed=None, resume=True)
    assert [(row["round"], row["releases"]) for row in _rows(tmp_path / "r")] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert _rows(tmp_path / "r")[-1]["epsilon_user"] == strategy.epsilon()
    assert report_text(read_facts(RunFolder.open(tmp_path / "r")))


def test_an_evaluation_in_which_every_node_fails_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp(mods=[UserLevelClipping()])
    app.train()(_still)
    train(tmp_path / "r", nodes_of(3, app), rounds=2, forward_metrics=True)
    assert len(_rows(tmp_path / "r")) == 3
    assert "no node evaluates the model of round 1: all 3 nodes failed in this round: " in caplog.text


@pytest.mark.parametrize(
    "name", ["epsilon_user", "round", "seconds", "cohort_users", "rounds", "delta", "failed_nodes"]
)
def test_a_figure_that_would_pass_for_one_of_the_runs_own_is_refused_before_a_release(
    tmp_path: Path, name: str
) -> None:
    message = f"evaluate_fn returned '{name}', a name of the run's own; allowed: another name"
    with pytest.raises(PrivacyError, match=message):
        train(tmp_path / "r", nodes_of(3), evaluate_fn=lambda number, arrays: MetricRecord({name: 0.001}))
    assert Ledger.read(tmp_path / "r").entries == ()


def test_a_figure_of_the_runs_own_that_comes_late_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def measured(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        return MetricRecord({"epsilon_user": 0.001, "accuracy": 0.5}) if server_round else None

    _, strategy = train(tmp_path / "r", nodes_of(3), evaluate_fn=measured)
    last = _rows(tmp_path / "r")[-1]
    assert (last["epsilon_user"], last["accuracy"]) == (strategy.epsilon(), 0.5)
    assert (
        "evaluate_fn returned 'epsilon_user', a name of the run's own; allowed: another name; it is left" in caplog.text
    )
    with pytest.raises(PrivacyError, match="evaluate_fn returned a float; allowed: a MetricRecord, or None"):
        train(tmp_path / "s", nodes_of(3), evaluate_fn=lambda number, arrays: 0.5)


def test_a_run_killed_before_its_result_has_only_that_left_to_write(tmp_path: Path) -> None:
    with patch.object(AppRun, "finish", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        train(tmp_path / "r", nodes_of(10), evaluate_fn=_accuracy)
    _, strategy = train(tmp_path / "r", nodes_of(10), evaluate_fn=_accuracy, resume=True)
    result = RunFolder.open(tmp_path / "r").result or {}
    assert (result["rounds"], result["epsilon_user"]) == (3, strategy.epsilon())
    assert result["measured"] == {"accuracy": [0.1, pytest.approx(0.7)]}


def test_a_round_lost_under_secure_noise_counts_again(tmp_path: Path) -> None:
    interrupted(tmp_path / "r", nodes_of(10), 2, seed=None)
    _, strategy = train(tmp_path / "r", nodes_of(10), seed=None, resume=True)
    assert len(Ledger.read(tmp_path / "r").entries) == 4  # of three rounds
    _, four = train(tmp_path / "four", nodes_of(10), rounds=4)
    assert strategy.epsilon() == pytest.approx(four.epsilon(), rel=1e-3)


def test_secure_noise_is_never_the_same(tmp_path: Path) -> None:
    one, _ = train(tmp_path / "one", nodes_of(10), seed=None, rounds=1)
    two, _ = train(tmp_path / "two", nodes_of(10), seed=None, rounds=1)
    assert (weights(one) != weights(two)).sum() > 3  # of six numbers, on a grid that both share
    total = float(one.arrays["scale"].numpy()) * 0.5 * 10  # every user sends zero there
    assert total % grid_width(1.0) == 0


def test_a_budget_ends_the_training_before_it_is_exceeded(tmp_path: Path) -> None:
    _, strategy = train(tmp_path / "r", nodes_of(10), rounds=10, epsilon_budget=5.0)
    facts = read_facts(RunFolder.open(tmp_path / "r")).record()
    assert facts["stopped"] == "epsilon_budget"
    assert facts["rounds_done"] == 2
    assert strategy.epsilon() <= 5.0


@pytest.mark.parametrize("seed", [0, None])
def test_a_run_that_was_killed_in_its_last_round_within_the_budget_states_all_releases(
    tmp_path: Path, seed: int | None
) -> None:
    """Seeded, the round is repeated as it was; secure noise has no budget for another one."""
    _, three = train(tmp_path / "three", nodes_of(10))
    changes: dict[str, Any] = {"rounds": 5, "seed": seed, "epsilon_budget": three.epsilon() * 1.001}
    undisturbed, _ = train(tmp_path / "whole", nodes_of(10), **changes)
    interrupted(tmp_path / "r", nodes_of(10), 3, **changes)
    resumed, _ = train(tmp_path / "r", nodes_of(10), resume=True, **changes)
    result = RunFolder.open(tmp_path / "r").result or {}
    assert (result["stopped"], result["releases"]) == ("epsilon_budget", 3)
    assert result["epsilon_user"] == pytest.approx(three.epsilon(), rel=1e-4)
    assert result["rounds"] == (2 if seed is None else 3)
    assert seed is None or (weights(resumed) == weights(undisturbed)).all()


def test_the_noise_meets_a_target_and_no_more(tmp_path: Path) -> None:
    _, strategy = train(tmp_path / "r", nodes_of(10), rounds=5, noise_multiplier=None, target_epsilon=3.0)
    assert 2.98 < strategy.epsilon() <= 3.0


def test_several_users_in_a_node_are_as_good_as_nodes_of_their_own(tmp_path: Path) -> None:
    def of_user(message: Message, context: Context) -> Message:
        by = np.zeros(5)
        by[int(message.content["config"]["user-id"]) % 5] = 0.5
        return moved(message, by)

    mod = UserLevelClipping(
        users=lambda context: [str(k) for k in range(context.node_config["first"], context.node_config["stop"])]
    )
    grouped = {
        11: (client(of_user, mod), {"first": 0, "stop": 4}),
        12: (client(of_user, mod), {"first": 4, "stop": 10}),
    }
    together, _ = train(tmp_path / "together", grouped)
    apart, _ = train(tmp_path / "apart", nodes_of(10))
    assert weights(together) == pytest.approx(weights(apart), abs=1e-6)


def test_an_app_that_writes_into_the_model_it_was_sent_changes_no_other_users_start(tmp_path: Path) -> None:
    def in_place(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        arrays["weight"] = Array(arrays["weight"].numpy() + np.float32(0.1))
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    mod = UserLevelClipping(users=lambda context: [str(k) for k in range(4)])
    result, _ = train(
        tmp_path / "run", {11: (client(in_place, mod), {})}, rounds=1, sampling_rate=1.0, population=4,
        noise_multiplier=1e-3,
    )  # fmt: skip
    assert weights(result)[:5] == pytest.approx(np.full(5, 0.1), abs=0.01)  # not 0.25, as if each went on from the last


def test_a_node_that_joins_late_takes_part_from_then_on(tmp_path: Path) -> None:
    grid = NodesHere(nodes_of(2))

    def join(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 2:
            grid.nodes |= {500: (client(), {"partition-id": 7})}

    train(tmp_path / "r", grid, rounds=4, sampling_rate=1.0, evaluate_fn=join)
    assert [row["cohort_users"] for row in _rows(tmp_path / "r")[1:]] == [2, 2, 3, 3]


def test_metrics_of_nodes_stay_there_unless_they_are_asked_for(tmp_path: Path) -> None:
    def measuring(message: Message, context: Context) -> Message:
        return moved(message, np.zeros(5), loss=0.25)

    grid = NodesHere(nodes_of(4, client(measuring)))
    result, _ = train(tmp_path / "closed", grid)
    assert not any(message.metadata.message_type.startswith("evaluate") for message in grid.sent)
    sent = {name for reply in grid.replies for record in reply.content.metric_records.values() for name in record}
    assert sent.isdisjoint({"loss", "accuracy"})
    assert set(_rows(tmp_path / "closed")[-1]).isdisjoint({"loss", "unprotected-loss"})
    assert not result.evaluate_metrics_clientapp
    result, _ = train(tmp_path / "open", nodes_of(4, client(measuring)), forward_metrics=True, sampling_rate=1.0)
    last = _rows(tmp_path / "open")[-1]
    assert (last["unprotected-loss"], last["unprotected-accuracy"]) == (0.25, 0.75)
    assert "unprotected" in report_text(read_facts(RunFolder.open(tmp_path / "open")))


def test_the_mod_answers_no_other_strategy() -> None:
    grid = NodesHere(nodes_of(1))
    for kind in ("train", "evaluate"):
        with as_task():
            message = Message(RecordDict({"arrays": model(), "config": ConfigRecord()}), 100, kind)
            (reply,) = grid.send_and_receive([message])
        assert reply.error.reason == (
            "userlevelclipping_mod got a request without a private round; wrap the ServerApp's strategy in "
            "UserLevelDifferentialPrivacy"
        )


def test_nodes_without_the_mod_are_refused_before_anything_is_sent_to_them(tmp_path: Path) -> None:
    def echo(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    with pytest.raises(
        ProtocolError, match=r"no node takes part: node 100: its ClientApp runs without userlevelclipping_mod"
    ):
        train(tmp_path / "r", nodes_of(2, client(echo, bare=True)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_rate": 0}, "sampling_rate is 0; allowed: in "),
        ({"sampling_rate": "0.1"}, "sampling_rate is '0.1'; allowed: a number"),
        ({"clip_norm": math.inf}, "clip_norm is inf; allowed: a number above 0"),
        ({"noise_multiplier": 0}, "noise_multiplier is 0; allowed: from 0.001 to 1e+30"),
        ({"clip_norm": 3e38}, "clip_norm is 3e+38; allowed: a number above 0, at most 1e+30"),
        ({"noise_multiplier": None}, "noise_multiplier is missing; allowed: one of"),
        ({"target_epsilon": 2}, "noise_multiplier is given with target_epsilon; allowed: one of"),
        ({"population": 0.5}, "population is 0.5; allowed: an integer"),
        ({"delta": 1}, "delta is 1; allowed: in "),
        ({"seed": -1}, "seed is -1; allowed: an integer of at least 0, or None"),
        ({"server_optimizer": ServerOptimizerConfig(), "wrapped": FedAvg()}, "strategy is given with server_optimizer"),
        ({"wrapped": FedAvg(fraction_train=0.5)}, "fraction_train is 0.5; allowed: 1.0, its default"),
        ({"wrapped": FedAvg(min_train_nodes=5)}, "min_train_nodes is 5; allowed: 2, its default"),
        ({"wrapped": FedAvg(weighted_by_key="tokens")}, "weighted_by_key is tokens; allowed: num-examples"),
        ({"rounds": 2.5}, "num_rounds is 2.5; allowed: a whole number"),
        ({"rounds": True}, "num_rounds is True; allowed: a whole number"),
        ({"timeout": None}, "timeout is None; allowed: a number of seconds above 0"),
        ({"timeout": 0}, "timeout is 0; allowed: a number of seconds above 0"),
        ({"wrapped": FedAvg(train_metrics_aggr_fn=lambda records, key: MetricRecord())}, "train_metrics_aggr_fn is"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(PrivacyError) as refused:
        train(tmp_path / "r", nodes_of(1), **changes)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "wrapped",
    [
        Krum(), MultiKrum(), Bulyan(), FedMedian(), FedTrimmedAvg(), QFedAvg(0.1),
        DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 10),
    ],
    ids=lambda strategy: type(strategy).__name__,
)  # fmt: skip
def test_strategies_that_look_at_single_replies_are_refused(tmp_path: Path, wrapped: Strategy) -> None:
    with pytest.raises(PrivacyError, match="which may look at single replies; allowed: FedAvg, "):
        train(tmp_path / "r", nodes_of(1), wrapped=wrapped)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bn.running_mean", np.zeros(2, np.float32), "'bn.running_mean' holds statistics of batches"),
        ("bn.num_batches_tracked", np.zeros((), np.int64), "holds statistics of batches"),
        ("steps", np.zeros(1, np.int64), "'steps' is of int64; allowed: float32, float64"),
        ("weight", np.zeros(0, np.float32), "the model has no parameters"),
    ],
)
def test_models_that_cannot_be_protected_are_refused(
    tmp_path: Path, name: str, value: np.ndarray, message: str
) -> None:
    with pytest.raises(PrivacyError, match=message):
        train(tmp_path / "r", nodes_of(1), initial=ArrayRecord({name: Array(value)}))


def test_a_round_in_which_every_node_fails_releases_nothing(tmp_path: Path) -> None:
    def broken(message: Message, context: Context) -> Message:
        raise FileNotFoundError("data/mine.csv")

    with pytest.raises(ValueError, match=r"all 3 nodes failed in this round: FileNotFoundError \(the node's log has"):
        train(tmp_path / "r", nodes_of(3, client(broken)), sampling_rate=1.0)
    assert Ledger.read(tmp_path / "r").entries == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": 2.0}, "clip_norm is 2.0; allowed: 1.0, as when the run began, or a new run"),
        ({"noise_multiplier": 2.0}, "plan is not that of the run's beginning"),
        ({"seed": 1}, "seed is 1; allowed: 0, as when the run began"),
        ({"wrapped": FedAdam()}, "strategy"),
        ({"initial": ArrayRecord(dict(model(6)))}, "model layout is not that of the run's beginning"),
    ],
)  # fmt: skip
def test_a_run_resumes_with_its_own_settings_alone(tmp_path: Path, changes: dict, message: str) -> None:
    interrupted(tmp_path / "r", nodes_of(10), 2)
    before = (tmp_path / "r" / "ledger.jsonl").read_bytes()
    with pytest.raises(ResultsError) as refused:
        train(tmp_path / "r", nodes_of(10), resume=True, **changes)
    assert message in str(refused.value) or "plan is not" in str(refused.value)
    assert (tmp_path / "r" / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_app_that_begins_with_a_random_model_goes_on_from_its_first(tmp_path: Path, rounds: int) -> None:
    def random_model(number: int) -> ArrayRecord:
        weight = np.random.default_rng(number).normal(size=5).astype(np.float32)
        return ArrayRecord({"weight": Array(weight), "scale": Array(np.zeros(()))})

    whole, reference = train(tmp_path / "whole", nodes_of(10), initial=random_model(1))
    interrupted(tmp_path / "r", nodes_of(10), rounds + 1, initial=random_model(1))
    resumed, strategy = train(tmp_path / "r", nodes_of(10), initial=random_model(2), resume=True)
    assert (weights(whole) == weights(resumed)).all()
    assert strategy.epsilon() == reference.epsilon()
    assert [row["round"] for row in _rows(tmp_path / "r")] == [0, 1, 2, 3]


def test_doubles_lose_no_digit_when_a_run_goes_on(tmp_path: Path) -> None:
    changes = {"initial": ArrayRecord({"weight": Array(np.full(5, 0.1)), "scale": Array(np.zeros(()))})}
    whole, _ = train(tmp_path / "whole", nodes_of(5), **changes)
    interrupted(tmp_path / "r", nodes_of(5), 2, **changes)
    resumed, _ = train(tmp_path / "r", nodes_of(5), resume=True, **changes)
    assert (weights(whole) == weights(resumed)).all()


def test_a_run_asks_in_each_round_the_users_whom_seed_and_round_draw(tmp_path: Path) -> None:
    grid, keys = NodesHere(nodes_of(12)), [f"{k}" for k in range(12)]
    train(tmp_path / "r", grid, seed=3)
    asked: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    for message in grid.sent:
        record = message.content.config_records[RECORD]
        if record.get("purpose") == "round":
            asked[record["server-round"]] |= set(record["users"])
    numbers = np.array(sorted(map(user_number, keys)))
    for number, users in asked.items():
        assert users == set(numbers[sampled_numbers(3, number, numbers, 0.5)].tolist())
    assert len({frozenset(users) for users in asked.values()}) == 3


def test_a_strategy_starts_once_because_its_samples_are_of_one_training(tmp_path: Path) -> None:
    interrupted(tmp_path / "r", nodes_of(5), 2, seed=None)
    _, strategy = train(tmp_path / "r", nodes_of(5), resume=True, seed=None)
    releases = len(Ledger.read(tmp_path / "r").entries)
    with pytest.raises(PrivacyError, match="start was called before; allowed: a new strategy, with resume=True"):
        strategy.start(NodesHere(nodes_of(5)), ArrayRecord({"w": Array(np.zeros(2))}), num_rounds=3)
    assert len(Ledger.read(tmp_path / "r").entries) == releases


def test_the_secret_seed_of_samples_is_of_128_bits_and_no_run_has_that_of_another(tmp_path: Path) -> None:
    made = [UserLevelDifferentialPrivacy(FedAvg(), folder=tmp_path, **SETTINGS | {"seed": None}) for _ in range(8)]
    assert len({one._sampling_seed for one in made}) == len({one._app_key for one in made}) == 8
    assert 120 < max(one._sampling_seed.bit_length() for one in made) <= 128
    assert {len(one._app_key) for one in made} == {16}
    assert all(one._app_key != one._sampling_seed.to_bytes(16, order) for one in made for order in ("little", "big"))
    bits = np.array([[one._sampling_seed >> bit & 1 for bit in range(128)] for one in made])
    assert 0.35 < bits.mean() < 0.65


def test_the_apps_own_generators_follow_from_seed_round_and_user_alone(tmp_path: Path) -> None:
    def draws_of(name: str, nodes: dict, **changes: int | None) -> dict:
        drawn.clear()
        train(tmp_path / name, nodes, sampling_rate=1.0, rounds=2, **changes)
        return dict(drawn)

    def drawing(message: Message, context: Context) -> Message:
        key = message.content["config"]["server-round"], context.node_config["partition-id"]
        drawn[key] = float(np.random.rand())  # noqa: NPY002
        return moved(message, np.zeros(5))

    drawn: dict[tuple[int, int], float] = {}
    one = draws_of("1", nodes_of(4, client(drawing)))
    assert len(set(one.values())) == 8
    assert draws_of("2", dict(reversed(list(nodes_of(4, client(drawing), first=900).items())))) == one
    assert set(draws_of("3", nodes_of(4, client(drawing)), seed=1).values()).isdisjoint(one.values())
    secret = draws_of("4", nodes_of(4, client(drawing)), seed=None)
    assert set(draws_of("5", nodes_of(4, client(drawing)), seed=None).values()).isdisjoint(secret.values())


def test_two_runs_of_a_seed_on_other_data_share_no_noise(tmp_path: Path) -> None:
    def moving(by: float):  # type: ignore[no-untyped-def]
        return client(lambda message, context: moved(message, np.full(5, by)))

    def noise(name: str, by: float, **changes: object) -> np.ndarray:
        result, _ = train(tmp_path / name, nodes_of(10, moving(by)), rounds=1, sampling_rate=1.0, **changes)
        return weights(result)[:5] - by

    one, again, other = noise("1", 0.1), noise("2", 0.1), noise("3", 0.2)
    assert (one == again).all()
    assert np.abs(one - other).min() > 1e-4
    assert np.abs(one - noise("4", 0.1, clip_norm=1.5)).min() > 1e-4
    with pytest.raises(LedgerError, match="has its samples from the same seed as"):
        fl_sim.account_runs([tmp_path / "1", tmp_path / "3"])


def test_noise_that_drowns_the_updates_is_told_before_the_first_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flwr")
    train(tmp_path / "few", nodes_of(3), rounds=1, initial=model(1370), population=20, sampling_rate=0.2)
    told = [record.message for record in caplog.records]
    warned = [
        k for k, line in enumerate(told) if "The noise drowns the updates: it is z·C/(q·N) = 0.25 on each of" in line
    ]
    assert warned[0] < next(k for k, line in enumerate(told) if "round 1 of 1" in line)
    assert "1371 parameters, 9.26 times as long" in told[warned[0]]
    assert "drowns the updates" in " ".join(report_text(read_facts(RunFolder.open(tmp_path / "few"))).split())
    caplog.clear()
    train(tmp_path / "many", nodes_of(3), rounds=1, initial=model(1370), population=200, sampling_rate=0.2)
    assert "The noise drowns" not in caplog.text


def test_an_account_of_an_apps_ledger_speaks_of_users_alone(tmp_path: Path) -> None:
    _, strategy = train(tmp_path / "r", nodes_of(3), rounds=2)
    account = fl_sim.account_runs([tmp_path / "r"])
    assert set(account) == {"ledger", "releases", "noiseless_releases", "delta", "epsilon_user"}
    assert account["epsilon_user"] == pytest.approx(strategy.epsilon(), rel=1e-3)
    assert "releases_robust" not in fl_sim.account_runs([tmp_path / "r"], joined_at=2)
    with pytest.raises(PrivacyError, match="a contribution bound is given for runs of Flower apps; allowed: none"):
        fl_sim.account_runs([tmp_path / "r"], entity=(3, 1))


def test_unprotected_metrics_are_means_over_users_of_their_own_round(tmp_path: Path) -> None:
    def measuring(message: Message, context: Context) -> Message:
        return moved(message, np.zeros(5), loss=float(message.content["config"]["server-round"]))

    app = client(
        measuring, UserLevelClipping(users=lambda context: [f"{context.node_config['first'] + k}" for k in (0, 1)])
    )
    nodes = {11: (app, {"first": 0}), 12: (app, {"first": 2})}
    train(tmp_path / "r", nodes, forward_metrics=True, sampling_rate=1.0)
    assert [row["unprotected-loss"] for row in _rows(tmp_path / "r")[1:]] == [1.0, 2.0, 3.0]


def test_a_forged_metric_stays_out_unless_it_was_asked_for(tmp_path: Path) -> None:
    class Talking(UserLevelClipping):
        def _answer(self, message, context, call_next):  # type: ignore[no-untyped-def]
            reply = super()._answer(message, context, call_next)
            reply.content["fl_sim.unprotected"] = MetricRecord({"loss": 0.5})
            return reply

    train(tmp_path / "r", nodes_of(3, client(mod=Talking())), rounds=1, sampling_rate=1.0)
    assert "unprotected-loss" not in _rows(tmp_path / "r")[-1]


def test_a_reply_to_the_round_before_counts_as_zero(tmp_path: Path) -> None:
    class Late(NodesHere):
        def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
            replies = list(super().pull_messages(message_ids))
            sums = [k for k, reply in enumerate(replies) if not reply.has_error() and reply.content.array_records]
            for k in sums:
                own = RecordDict(dict(replies[k].content))
                replies[k].content, kept[0] = RecordDict(dict(kept[0] or own)), own
            return replies

    kept: list[RecordDict | None] = [None]
    train(tmp_path / "r", Late(nodes_of(1)), rounds=3, sampling_rate=1.0, population=1)
    assert [row.get("failed_other_request", 0) for row in _rows(tmp_path / "r")[1:]] == [0, 1, 1]


def test_delta_and_the_expected_cohort_are_those_of_the_settings(tmp_path: Path) -> None:
    result, strategy = train(tmp_path / "r", nodes_of(3), rounds=2, delta=1e-3)
    mechanism = Ledger.read(tmp_path / "r").entries[0].terms.mechanism
    assert (mechanism.denominator, mechanism.clip_norm, mechanism.noise_multiplier) == (5.0, 1.0, 1.0)
    _, strict = train(tmp_path / "strict", nodes_of(3), rounds=2)
    assert strategy.epsilon() < strict.epsilon()
    first, last = (result.train_metrics_clientapp[number] for number in (1, 2))
    assert (last["epsilon"], last["delta"]) == (strategy.epsilon(), 1e-3)
    assert 0 < first["epsilon"] < last["epsilon"]


def test_other_settings_of_the_app_are_another_computation(tmp_path: Path) -> None:
    parts = []
    for name, config in (("1", {"lr": 0.1}), ("2", {"lr": 0.2}), ("3", {"lr": 0.1})):
        strategy = UserLevelDifferentialPrivacy(FedAvg(), folder=tmp_path / name, **SETTINGS)
        with as_task():
            strategy.start(NodesHere(nodes_of(2)), model(), num_rounds=1, train_config=ConfigRecord(config))
        run = strategy._open.run
        assert strategy._open.round._parts.noise_key == run.noise_key != ""
        parts.append(run.noise_key)
    assert parts[0] == parts[2] != parts[1]


def test_the_learning_rate_of_our_optimizer_knows_the_number_of_rounds() -> None:
    prepared: list[tuple] = []
    with patch("fl_sim.flower.server_step.build_optimizer", lambda *arguments: prepared.append(arguments[1:])):
        OptimizerStep(ServerOptimizerConfig()).prepare(12, 30)
    assert prepared[-1] == (12, 30)


def test_two_strategies_made_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    folders = {UserLevelDifferentialPrivacy(FedAvg(), **SETTINGS).folder for _ in range(5)}
    assert len(folders) == 5
    assert {folder.parent for folder in folders} == {tmp_path / "fl-sim-runs"}


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    train(tmp_path / "r", nodes_of(3))
    with pytest.raises(ResultsError, match="exists and is not empty"):
        train(tmp_path / "r", nodes_of(3))
    with pytest.raises(ResultsError, match="the run is finished"):
        train(tmp_path / "r", nodes_of(3), resume=True)


def test_runs_are_audited_compared_and_drawn_like_others(tmp_path: Path) -> None:
    for name, changes in {"one": {"sampling_rate": 0.5}, "two": {"sampling_rate": 0.4}}.items():
        train(tmp_path / name, nodes_of(10), evaluate_fn=_accuracy, **changes)
    audit = audit_ledger(tmp_path / "one")
    assert audit.holds, audit.record()
    assert {"seed", "epsilon", "noise", "updates", "rate of users"} <= {check.name for check in audit.checks}
    comparison = fl_sim.compare([tmp_path / "one", tmp_path / "two"])
    assert "accuracy 0.1 → 0.7" in comparison.text()
    page = comparison.page()
    assert "accuracy 0.1 → 0.7" in page
    assert "ε of any user" in page
    assert "any entity" not in page


@pytest.mark.parametrize(("before", "at"), [("finish", "rounds"), ("add_row", 2), ("add_row", 1)])
def test_the_ledger_of_a_run_that_was_killed_and_went_on_holds(tmp_path: Path, before: str, at: Any) -> None:
    rounds = 1 if at == 1 else 2
    interrupted(tmp_path / "r", nodes_of(10), at, before=before, rounds=rounds)
    train(tmp_path / "r", nodes_of(10), rounds=rounds, resume=True)
    assert audit_ledger(tmp_path / "r").holds


def test_the_ledger_of_a_run_whose_nodes_left_holds_and_a_doubled_rate_does_not(tmp_path: Path) -> None:
    grid = NodesHere(nodes_of(40))

    def leave(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 5:
            grid.nodes = nodes_of(5)

    train(tmp_path / "r", grid, rounds=6, evaluate_fn=leave)
    assert audit_ledger(tmp_path / "r").holds
    with patch.object(EnrolledNodes, "sampled", lambda nodes, *_: dict(nodes._named)):
        train(tmp_path / "all", nodes_of(40), rounds=2)
    assert [check.name for check in audit_ledger(tmp_path / "all").checks if not check.holds] == ["rate of users"]


def _accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": 0.1 + 0.2 * server_round})


def _rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
