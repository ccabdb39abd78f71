"""Put one fault at a time into a copy of the tree and run the tests that should notice it."""
