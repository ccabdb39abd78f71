"""Encoders and the privacy layer as torch modules: they agree with the maths, and their randomness with the step's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from fl_sim.clients.errors import ModelError
from fl_sim.research.representations.client.encoder_inputs import (
    MaskedLists,
    TokenLists,
    Vocabulary,
    drop_words,
    words_of,
)
from fl_sim.research.representations.client.encoders import (
    FrozenEncoder,
    LowerStates,
    MlpEncoder,
    WordBag,
    build_encoder,
)
from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.client.privacy_layers import PrivacyLayer
from fl_sim.research.representations.config import EncoderSection
from fl_sim.research.representations.local_privacy import MECHANISMS, UnitL1, WordDropout
from tests.research.representations.tiny_bert import save_tiny_bert

KINDS = list(MECHANISMS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_normalises_as_the_maths_does(kind: type[UnitL1]) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 6))
    rows[3] = 0.0
    rows[4] = 2.0
    layer = PrivacyLayer(kind(6, 1.0))
    np.testing.assert_allclose(layer.normalise(torch.from_numpy(rows)), kind(6, 1.0).normalise(rows), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_and_are_finite_at_zero_vectors(kind: type[UnitL1]) -> None:
    rows = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1, -2, 3]], requires_grad=True)
    PrivacyLayer(kind(3, 1.0))(rows, Draw(1, 3)).square().sum().backward()
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()
    assert (rows.grad[2] != 0).any()


def test_a_mask_keeps_the_share_and_the_mean() -> None:
    mask = Draw(1, 4000).dropout_mask("m", 25, 0.1)
    assert mask.dtype == torch.float32
    assert (mask == 0).float().mean().item() == pytest.approx(0.1, abs=0.005)  # five standard deviations
    assert mask[mask > 0].unique().tolist() == [pytest.approx(1 / 0.9, rel=1e-4)]
    assert Draw(1, 3).dropout_mask("m", 3, 0.0).unique().tolist() == [1.0]


def test_training_noise_is_laplace_of_the_scale_asked_for() -> None:
    layer = PrivacyLayer(UnitL1(8, 4.0))
    rows = torch.ones(5000, 8)
    for scale, expected in ((None, 0.5), (2.0, 2.0), (0.0, 0.0)):
        noise = layer(rows, Draw(3, 5000), scale) - layer(rows)
        assert float(noise.abs().mean()) == pytest.approx(expected, rel=0.02)
        # Laplace, and nothing else with that mean: E n² = 2b²
        assert float(noise.square().mean()) == pytest.approx(2 * expected**2, rel=0.05)
    assert torch.equal(layer(rows), layer.normalise(rows))  # evaluation has none


def test_what_is_released_is_the_mechanism_s_and_never_bare() -> None:
    mechanism = UnitL1(4, 1.0)
    rows = torch.randn(6, 4)
    sent = PrivacyLayer(mechanism).release(rows, np.random.default_rng(0))
    expected = mechanism.release(rows.double().numpy(), np.random.default_rng(0)).astype(np.float32)
    np.testing.assert_array_equal(sent, expected)
    assert np.abs(sent - mechanism.normalise(rows.double().numpy())).min() > 0
    bare = PrivacyLayer(None)
    np.testing.assert_array_equal(bare.release(rows, None), rows.numpy())
    assert bare.guarantee.any_text == float("inf")


def test_a_step_s_numbers_follow_from_its_seed_and_their_purpose() -> None:
    whole = Draw(7, 10)
    assert not torch.equal(whole.uniform("a", 3), whole.uniform("b", 3))
    assert not torch.equal(whole.uniform("a", 3), Draw(8, 10).uniform("a", 3))
    assert torch.equal(whole.uniform("a", 3), Draw(7, 10).uniform("a", 3))


def test_the_mlp_drops_at_its_rate_and_not_in_evaluation() -> None:
    encoder = MlpEncoder(3, 2000, 2, 0.25)
    hidden = torch.relu(encoder.network.linears[0](torch.ones(1, 3)))
    with torch.no_grad():
        encoder.network.linears[1].weight.copy_(torch.eye(2000))
        kept = encoder(torch.ones(1, 3), Draw(0, 1))
        assert torch.allclose(encoder(torch.ones(1, 3)), hidden)
    alive = hidden[0] > 0
    share = float((kept[0][alive] > 0).float().mean())
    assert share == pytest.approx(0.75, abs=0.05)
    assert torch.allclose(kept[0][kept[0] > 0], hidden[0][kept[0] > 0] / 0.75)


def test_a_bag_is_the_mean_of_its_words_and_empty_texts_are_zero() -> None:
    encoder = WordBag(5, 4)
    batch = TokenLists([[1, 2], [], [3]]).batch(np.array([0, 1, 2]))
    found = encoder(batch)
    assert torch.allclose(found[0], encoder.vectors.weight[[1, 2]].mean(dim=0))
    assert torch.equal(found[1], torch.zeros(4))
    assert torch.allclose(found[2], encoder.vectors.weight[3])


def test_weights_follow_the_seed_and_leave_torch_s_generator_alone() -> None:
    before = torch.random.get_rng_state()
    spec = EncoderSection(kind="mlp", width=4)
    first, again, other = (build_encoder(spec, 3, seed).network.linears[0].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_words_and_vocabulary() -> None:
    assert words_of("Don't stop, B-52!") == ["don't", "stop", ",", "b", "-", "52", "!"]
    vocabulary = Vocabulary(["a b a", "c a b"])
    assert vocabulary.encode("a b c zebra") == [1, 2, 3, 0]
    assert len(vocabulary) == 4
    pairs = Vocabulary(["a b a", "c a b"], 2)  # a 3, then "a b" and b 2, then "b a", c and "c a" 1
    assert pairs.encode("c a b zebra") == [5, 1, 3, 0, 6, 2, 0]
    assert len(pairs) == 7
    assert Vocabulary(["a b c"], 3).encode("a b c")[-1] == Vocabulary(["a b c"], 3).encode("a b c d")[-2] > 0
    assert drop_words(["a b", "c"], WordDropout(1.0), np.random.default_rng(0)) == ["", ""]
    assert drop_words(["a  Bush."], WordDropout(0.0, frozenset({"bush"})), np.random.default_rng(0)) == ["a"]


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


def test_any_hugging_face_encoder_is_read_once_and_kept(tiny_bert: Path, tmp_path: Path) -> None:
    spec = EncoderSection(kind="table", model=str(tiny_bert))
    texts = ["good film", "bad", ""]
    plain = FrozenEncoder(spec).features(texts)
    assert plain.shape == (3, 8)
    kept = FrozenEncoder(spec, tmp_path).features(texts)
    np.testing.assert_allclose(kept, plain, atol=1e-6)
    (file,) = tmp_path.glob("features-*.npy")
    changed = np.load(file)
    changed[:] = 7
    np.save(file, changed)
    assert (FrozenEncoder(spec, tmp_path).features(texts) == 7).all()  # the file is what was read
    assert (FrozenEncoder(spec, tmp_path).features(["good"]) != 7).any()  # other texts have another file


def test_a_trainable_transformer_agrees_with_the_frozen_one(tiny_bert: Path) -> None:
    encoder = build_encoder(EncoderSection(kind="transformer", model=str(tiny_bert)), 0, 0)
    batch = TokenLists([[2, 4, 6, 3], [2, 5, 3]]).batch(np.array([0, 1]))
    expected = FrozenEncoder(EncoderSection(kind="table", model=str(tiny_bert))).features(["good film", "bad"])
    np.testing.assert_allclose(encoder(batch).detach(), expected, atol=1e-5)
    encoder(batch).sum().backward()
    assert any(p.grad is not None and (p.grad != 0).any() for p in encoder.parameters())


def test_a_mask_is_the_model_s_own_attention_mask(tiny_bert: Path) -> None:
    spec = EncoderSection(kind="transformer", model=str(tiny_bert), pooling="pooler")
    inputs = MaskedLists(TokenLists([[2, 4, 6, 3], [2, 5, 3]]), 0.5, np.random.default_rng(1))
    batch = inputs.batch(np.array([0, 1]))
    seen = batch.visible.tolist()
    assert seen == [bool(uniform >= 0.5) for uniform in np.random.default_rng(1).random(7)]
    assert False in seen[1:4]
    module = transformers.AutoModel.from_pretrained(tiny_bert).eval()
    mask = torch.tensor([[1, *seen[1:4]], [1, *seen[5:], 0]])
    expected = module(input_ids=torch.tensor([[2, 4, 6, 3], [2, 5, 3, 0]]), attention_mask=mask).pooler_output
    torch.testing.assert_close(build_encoder(spec, 0, 0).eval()(batch), expected)
    nothing = MaskedLists(TokenLists([[2, 4, 3]]), 1.0, np.random.default_rng(0)).batch(np.array([0]))
    assert torch.isfinite(build_encoder(spec, 0, 0)(nothing)).all(), "the first token stays"


def test_a_masked_word_of_a_bag_is_the_unknown_one() -> None:
    bag = build_encoder(EncoderSection(kind="bag", width=4), 5, 0)
    batch = MaskedLists(TokenLists([[1, 2, 3, 4]]), 0.5, np.random.default_rng(1)).batch(np.array([0]))
    ids = [token * seen for token, seen in zip([1, 2, 3, 4], batch.visible.tolist(), strict=True)]
    torch.testing.assert_close(bag(batch), bag.vectors.weight[ids].mean(dim=0, keepdim=True))
    assert 0 in ids != [0] * 4


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_trained_layers_read_what_the_frozen_ones_made_once(tiny_bert: Path, tmp_path: Path, pooling: str) -> None:
    values = {"kind": "transformer", "model": str(tiny_bert), "pooling": pooling}
    spec = EncoderSection.model_validate({**values, "trained_layers": 1})
    whole, upper = build_encoder(EncoderSection.model_validate(values), 0, 0), build_encoder(spec, 0, 0)
    inputs = LowerStates(spec, tmp_path).read(["good film", "bad", ""])
    rows = np.array([1, 0])
    plain = TokenLists([[2, 4, 6, 3], [2, 5, 3]]).batch(rows)
    torch.testing.assert_close(upper(inputs.batch(rows)), whole(plain), atol=1e-3, rtol=1e-3)  # float16 states
    torch.testing.assert_close(upper(plain), whole(plain))  # tokens are read, too
    trained = {name for name, p in upper.named_parameters() if p.requires_grad}
    assert all(".layer.1." in name or ".pooler." in name for name in trained)
    assert any(".pooler." in name for name in trained) == (pooling == "pooler")
    upper(inputs.batch(rows)).square().sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in upper.parameters())
    assert any(name.endswith(".layer.1.output.dense.weight") for name in trained)
    (file,) = tmp_path.glob("states-*.bin")
    again = LowerStates(spec, tmp_path).read(["good film", "bad", ""])
    torch.testing.assert_close(again.batch(rows).states, inputs.batch(rows).states, rtol=0, atol=0)
    assert list(tmp_path.glob("states-*.bin")) == [file]


def test_all_layers_may_train_above_frozen_word_vectors(tiny_bert: Path) -> None:
    spec = EncoderSection(kind="transformer", model=str(tiny_bert), trained_layers=2)
    frozen = {name for name, p in build_encoder(spec, 0, 0).named_parameters() if not p.requires_grad}
    assert all("embeddings" in name or "head" in name for name in frozen)
    assert LowerStates(spec).read(["good"]).batch(np.array([0])).states is None


def test_more_trained_layers_than_there_are_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(ModelError, match=r"encoder\.trained_layers is 3; allowed for .*: 1 to 2"):
        build_encoder(EncoderSection(kind="transformer", model=str(tiny_bert), trained_layers=3), 0, 0)
    with pytest.raises(ValueError, match="trained_layers is 1; allowed with kind = 'transformer'"):
        EncoderSection(kind="mlp", trained_layers=1)


def test_dpnr_sends_the_pooler_s_state_also_of_a_frozen_encoder(tiny_bert: Path) -> None:
    spec = EncoderSection(kind="table", model=str(tiny_bert), pooling="pooler")
    features = FrozenEncoder(spec).features(["good film"])
    module = transformers.AutoModel.from_pretrained(tiny_bert)
    expected = module(input_ids=torch.tensor([[2, 4, 6, 3]])).pooler_output
    np.testing.assert_allclose(features, expected.detach(), atol=1e-5)


def test_a_transformer_without_a_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"encoder\.model is missing"):
        build_encoder(EncoderSection(kind="transformer"), 0, 0)
