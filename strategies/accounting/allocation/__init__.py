"""Privacy losses of users who take part in one round of every epoch, chosen at random."""
