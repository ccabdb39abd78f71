"""Privacy accounting: the ε proven for a user, an entity and both, from the event of a round. No framework."""
