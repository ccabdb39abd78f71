"""What happens to a noisy average after its release, at no privacy cost: the server step and iterate averages."""
