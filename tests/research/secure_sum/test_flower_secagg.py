"""What docs/secure_sum.md says of SecAgg+ in Flower: what works with apps of the message API, and what is missing.

A test that fails after an update of Flower means that the page has to be read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp, mod
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common import recorddict_compat
from flwr.compat.common.typing import Code, FitRes, Status
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

NODES = {1: np.array([5.0, -3.0, 7.0]), 2: np.array([1.0, 1.0, -8.0]), 3: np.array([2.0, 0.0, 0.0])}
HALF_RANGE, MODULUS = 8, 2**20
SETUP: dict[str, Any] = {
    Key.STAGE: Stage.SETUP, Key.SAMPLE_NUMBER: 3, Key.SHARE_NUMBER: 3, Key.THRESHOLD: 2, Key.MAX_WEIGHT: 1.0,
    Key.CLIPPING_RANGE: float(HALF_RANGE), Key.TARGET_RANGE: 2 * HALF_RANGE, Key.MOD_RANGE: MODULUS,
}  # fmt: skip
"""One unit of the lattice is one unit of an update, and an update of weight 1 is not scaled."""


@pytest.fixture(autouse=True)
def _task() -> Iterator[None]:
    with patch.multiple(TaskIdentity, _task_id=1, _run_id=1, _node_id=0):
        yield


class Protocol:
    """The server's part of SecAgg+, which Flower has for the older API alone, and three nodes in this process."""

    def __init__(self, app: ClientApp) -> None:
        self.app = app
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={}) for node in NODES
        }

    def send(self, node: int, config: dict[str, Any], message_type: str = "train") -> RecordDict:
        """Send one message and return the content of the reply."""
        content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord(dict(config))})
        with patch.multiple(TaskIdentity, _node_id=0):
            message = Message(content, dst_node_id=node, message_type=message_type, group_id="1")
        with patch.multiple(TaskIdentity, _node_id=node):
            return self.app(message, self.contexts[node]).content

    def masked(self) -> dict[int, RecordDict]:
        """Return every node's reply with its masked vector."""
        keys = {node: self.send(node, SETUP).config_records[RECORD_KEY_CONFIGS] for node in NODES}
        public = {str(node): [record[Key.PUBLIC_KEY_1], record[Key.PUBLIC_KEY_2]] for node, record in keys.items()}
        forwarded: dict[int, dict[int, Any]] = {node: {} for node in NODES}
        for node in NODES:
            shares = self.send(node, public | {Key.STAGE: Stage.SHARE_KEYS}).config_records[RECORD_KEY_CONFIGS]
            for other, text in zip(shares[Key.DESTINATION_LIST], shares[Key.CIPHERTEXT_LIST], strict=True):  # type: ignore[arg-type]
                forwarded[other][node] = text
        stage = {Key.STAGE: Stage.COLLECT_MASKED_VECTORS}
        return {
            node: self.send(node, stage | {Key.CIPHERTEXT_LIST: [*texts.values()], Key.SOURCE_LIST: [*texts]})
            for node, texts in forwarded.items()
        }

    def unmasked(self, masked: dict[int, RecordDict]) -> list[np.ndarray]:
        """Return the sum of the masked vectors without the nodes' own masks, modulo; all nodes are alive."""
        shares: dict[int, list[bytes]] = {node: [] for node in NODES}
        stage = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: [*NODES], Key.DEAD_NODE_ID_LIST: []}
        for node in NODES:
            answer = self.send(node, stage).config_records[RECORD_KEY_CONFIGS]
            for owner, share in zip(answer[Key.NODE_ID_LIST], answer[Key.SHARE_LIST], strict=True):  # type: ignore[arg-type]
                shares[owner].append(share)  # type: ignore[index, arg-type]
        vectors = [vectors_of(content) for content in masked.values()]
        total = [sum(parts) for parts in zip(*vectors, strict=True)]
        for owned in shares.values():
            mask = pseudo_rand_gen(combine_shares(owned), MODULUS, [part.shape for part in total])  # type: ignore[union-attr]
            total = [part - own for part, own in zip(total, mask, strict=True)]
        return [np.asarray(part % MODULUS) for part in total]


def vectors_of(content: RecordDict) -> list[np.ndarray]:
    """Return the masked vectors of a reply."""
    masked = content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
    return [bytes_to_ndarray(part) for part in masked]  # type: ignore[union-attr, arg-type]


def app_with_legacy_records() -> ClientApp:
    """An app of the message API whose replies have the records of the older API, for ``train`` and ``train.step``."""
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        parameters = ndarrays_to_parameters([NODES[context.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={"loss": 0.125})
        return Message(recorddict_compat.fitres_to_recorddict(result, False), reply_to=message)

    app.train(mods=[secaggplus_mod])(train)
    app.train("step", mods=[secaggplus_mod])(train)
    return app


def test_flowers_message_api_has_no_secure_aggregation() -> None:
    assert not [name for name in dir(mod) if "secagg" in name.lower()]


def test_the_servers_part_is_for_the_older_api_alone() -> None:
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(TypeError, match="Expect a LegacyContext"):
        SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(None, context)  # type: ignore[arg-type]


def test_a_reply_of_the_message_api_breaks_the_mod() -> None:
    app = ClientApp()

    @app.train(mods=[secaggplus_mod])
    def train(message: Message, context: Context) -> Message:
        records = {"arrays": ArrayRecord([NODES[context.node_id]]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    with pytest.raises(KeyError, match=r"fitres\.parameters"):
        Protocol(app).masked()


def test_with_legacy_records_the_modular_sum_is_exact() -> None:
    protocol = Protocol(app_with_legacy_records())
    _, total = protocol.unmasked(protocol.masked())
    assert np.array_equal(total - len(NODES) * HALF_RANGE, sum(NODES.values()))


def test_metrics_leave_a_node_beside_the_masked_vector() -> None:
    content = Protocol(app_with_legacy_records()).masked()[1]
    assert content.config_records["fitres.metrics"]["loss"] == 0.125
    assert not content.array_records["fitres.parameters"]


def test_a_named_action_is_sent_in_the_clear() -> None:
    content = Protocol(app_with_legacy_records()).send(1, SETUP, "train.step")
    assert np.array_equal(content.array_records["fitres.parameters"].to_numpy_ndarrays()[0], NODES[1])


def test_masks_have_32_bits_of_secret() -> None:
    """A mask of 256 bits of key depends on the exclusive or of its eight words alone: 2³² tries find it."""
    key = bytes(range(32))
    folded = int(np.bitwise_xor.reduce(np.frombuffer(key, dtype="<u4")))
    short = folded.to_bytes(4, "little") + bytes(28)
    long_mask, short_mask = (pseudo_rand_gen(one, MODULUS, [(100,)])[0] for one in (key, short))
    assert np.array_equal(long_mask, short_mask)
