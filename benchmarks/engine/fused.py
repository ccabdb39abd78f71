"""The upper reference: one non-private gradient of all the cohort's sentences, in batches of an efficient size."""

import numpy as np
import plain
import torch

SENTENCES = 51  # 1,020 tokens, as in a batch of fl_sim


def main() -> None:
    spec = plain.read_spec()
    tokens, module, rng = plain.users_of(spec), plain.gpt2(spec), np.random.default_rng(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=plain.RATE)

    def one_round() -> None:
        sentences = tokens[torch.tensor(plain.cohort_of(spec, rng))].flatten(0, 1)
        optimizer.zero_grad()
        for batch in sentences.split(SENTENCES):
            (plain.loss_of(module, batch) * (len(batch) / len(sentences))).backward()
        optimizer.step()

    plain.on_demand(one_round)


main()
