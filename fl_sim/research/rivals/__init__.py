"""Other methods' claims, each from its paper: what they train on and what they say of their ε."""
