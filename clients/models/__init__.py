"""The models that clients train: architectures, tokenizers, trainable parameters and losses."""
