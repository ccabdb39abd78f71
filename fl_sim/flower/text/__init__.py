"""User-entity differential privacy for text that stays with its nodes, as a Flower app."""
