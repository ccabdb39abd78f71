"""Compute a client's part of a round: select eligible sentences and sum the bounded client updates."""
