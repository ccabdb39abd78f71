"""ε of every entity, from the numbers of its sentences in each of its users."""
