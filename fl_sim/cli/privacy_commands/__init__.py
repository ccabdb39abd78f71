"""Commands that compute, plan or attack an ε."""
