"""The lower reference: a plain torch loop over the cohort's users, one local epoch each, client updates summed."""

import numpy as np
import plain
import torch


def main() -> None:
    spec = plain.read_spec()
    tokens, module, rng = plain.users_of(spec), plain.gpt2(spec), np.random.default_rng(0)
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for user in plain.cohort_of(spec, rng):
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            optimizer = torch.optim.SGD(parameters, lr=plain.RATE)
            sentences = tokens[user][torch.randperm(spec["sentences"])]
            for batch in sentences.split(plain.BATCH):
                optimizer.zero_grad()
                plain.loss_of(module, batch).backward()
                optimizer.step()
            with torch.no_grad():
                update = torch._foreach_sub(parameters, start)
                torch._foreach_add_(total, update)
        torch._foreach_add_(start, total, alpha=1 / spec["cohort"])

    plain.on_demand(one_round)


main()
