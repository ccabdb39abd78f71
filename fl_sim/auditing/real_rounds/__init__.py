"""Audit real rounds: the real model, gradients, clips, sampling, server and noise, with gradients of our choice."""
