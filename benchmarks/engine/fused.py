"""The bound: one gradient of all the cohort's sentences in batches of a size that is fast here, nothing private."""

import numpy as np
import plain
import torch

SENTENCES = 51  # 1,020 tokens: as many as fl_sim takes at once


def main() -> None:
    spec = plain.given()
    tokens, module, draws = plain.users_of(spec), plain.gpt2(spec), np.random.default_rng(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=plain.RATE)

    def one_round() -> None:
        sentences = tokens[torch.tensor(plain.cohort_of(spec, draws))].flatten(0, 1)
        optimizer.zero_grad()
        for batch in sentences.split(SENTENCES):
            (plain.loss_of(module, batch) * (len(batch) / len(sentences))).backward()
        optimizer.step()

    plain.on_demand(one_round)


main()
