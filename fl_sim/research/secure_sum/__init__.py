"""Secure sums with distributed noise on an integer lattice; no run of the product uses them."""
