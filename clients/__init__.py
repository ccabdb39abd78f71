"""What a client does in a round: choose its eligible sentences, compute its bounded update."""
