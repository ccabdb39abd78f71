"""The faults: each is the right strategy with one method changed, as it was found in published code."""

import random

import numpy as np

from faults.private_average import Arrays, PrivateAverage


class NoNoise(PrivateAverage):
    """Adds no noise."""

    def noise(self, name, value):
        return np.zeros(value.shape)


class UnboundedUpdate(PrivateAverage):
    """Does not clip."""

    def clipped(self, move):
        return move


class ClipOnMean(PrivateAverage):
    """Clips the mean of the updates, not each of them."""

    def clipped(self, move):
        return move

    def total(self, moves):
        mean = {name: value / max(1, len(moves)) for name, value in super().total(moves).items()}
        return PrivateAverage.clipped(self, mean)


class UnclippedArray(PrivateAverage):
    """Leaves parameters without dimensions out of the clip."""

    def clipped(self, move):
        return super().clipped({name: value for name, value in move.items() if value.ndim}) | {"bias": move["bias"]}


class ArrayWithoutNoise(PrivateAverage):
    """Averages the statistics of batches without noise."""

    def noise(self, name, value):
        return super().noise(name, value) * (name != "running_mean")


class ExampleWeights(PrivateAverage):
    """Weighs clipped updates by the number of examples that a node reports."""

    def total(self, moves: list[Arrays]) -> Arrays:
        weights = [reply.content["metrics"]["num-examples"] for reply in self.replies]
        shares = [len(weights) * weight / sum(weights) for weight in weights]
        return super().total(
            [{k: v * share for k, v in move.items()} for move, share in zip(moves, shares, strict=True)]
        )


class NanPasses(PrivateAverage):
    """Clips by min(1, C / norm), which is NaN where the norm is."""

    def update(self, reply):
        return {name: array.numpy() - self.model[name] for name, array in reply.content["arrays"].items()}

    def clipped(self, move):
        norm = np.sqrt(sum(float((value**2).sum()) for value in move.values()))
        return {
            name: value * np.minimum(1.0, self.clip_norm / np.maximum(norm, 1e-300)) for name, value in move.items()
        }


class InfPasses(PrivateAverage):
    """Drops a NaN, but no infinity, of which min(1, C / norm) is 0 and the product NaN."""

    def update(self, reply):
        move = {name: array.numpy() - self.model[name] for name, array in reply.content["arrays"].items()}
        bad = any(np.isnan(value).any() for value in move.values())
        return {name: np.zeros_like(value) if bad else value for name, value in move.items()}


class FailureShows(PrivateAverage):
    """Skips the round, noise and all, if a node fails."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if any(reply.has_error() for reply in replies):
            return None, None
        return super().aggregate_train(server_round, replies)


class RealisedDenominator(PrivateAverage):
    """Divides by the number of users who took part."""

    def denominator(self):
        return max(1, len(self.replies))


class FixedCohort(PrivateAverage):
    """Draws a cohort of fixed size under an accountant of Poisson cohorts."""

    def cohort(self, nodes, server_round):
        return random.sample(nodes, 5)


class SameCohort(PrivateAverage):
    """Trains the same half of the users in every round, under an accountant of random cohorts."""

    def cohort(self, nodes, server_round):
        return nodes[-5:]


class AccountantReset(PrivateAverage):
    """Begins a new accountant in every round."""

    def epsilon(self):
        return self.accounted(1)


class NoiseReused(PrivateAverage):
    """Draws the noise of a training once."""

    def noise(self, name, value):
        self.drawn = getattr(self, "drawn", {})
        return self.drawn.setdefault(name, super().noise(name, value))


class NoiseStops(PrivateAverage):
    """Adds noise in the first round alone."""

    def noise(self, name, value):
        return super().noise(name, value) * (self.rounds <= 1)


class NoiseInStep(PrivateAverage):
    """Adds one number to all entries of an array."""

    def noise(self, name, value):
        return np.full(value.shape, np.random.default_rng().normal(0.0, self.z * self.clip_norm))


class NumberWithoutNoise(PrivateAverage):
    """Leaves one entry of an array without noise."""

    def noise(self, name, value):
        drawn = super().noise(name, value)
        return drawn * (np.arange(drawn.size) > 0) if drawn.ndim else drawn


class FixedSeed(PrivateAverage):
    """Draws noise from a generator with a seed that stands in the code."""

    def noise(self, name, value):
        return np.random.default_rng([42, self.rounds, len(name)]).normal(0.0, self.z * self.clip_norm, value.shape)


class NoiseBelowClaim(PrivateAverage):
    """Scales the noise to a sensitivity that is a setting of its own, far below the clip."""

    def noise(self, name, value, sensitivity=0.05):
        return sensitivity * super().noise(name, value)


class MetricsLeave(PrivateAverage):
    """Logs the mean training loss of the users who took part."""

    def metrics(self):
        losses = [reply.content["metrics"]["train_loss"] for reply in self.replies]
        return {"train_loss": float(np.mean(losses))} if losses else {}


class LossesLeave(PrivateAverage):
    """Logs the training loss of each user who took part."""

    def metrics(self):
        return {"train_losses": [float(reply.content["metrics"]["train_loss"]) for reply in self.replies]}


class ExceptionText(PrivateAverage):
    """Logs why a node failed."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                print(f"a node failed: {reply.error.reason}")
        return super().aggregate_train(server_round, replies)


FAULTS = {
    "no-noise": NoNoise, "unbounded-update": UnboundedUpdate, "clip-on-mean": ClipOnMean,
    "unclipped-array": UnclippedArray, "array-without-noise": ArrayWithoutNoise, "example-weights": ExampleWeights,
    "nan-passes": NanPasses, "failure-shows": FailureShows, "realised-denominator": RealisedDenominator,
    "fixed-cohort": FixedCohort, "same-cohort": SameCohort, "accountant-reset": AccountantReset,
    "noise-reused": NoiseReused, "fixed-seed": FixedSeed, "noise-below-claim": NoiseBelowClaim,
    "metrics-leave": MetricsLeave, "exception-text": ExceptionText, "inf-passes": InfPasses,
    "losses-leave": LossesLeave, "noise-stops": NoiseStops, "noise-in-step": NoiseInStep,
    "number-without-noise": NumberWithoutNoise,
}  # fmt: skip
