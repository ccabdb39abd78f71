"""A plain Flower app: softmax regression on digits."""
