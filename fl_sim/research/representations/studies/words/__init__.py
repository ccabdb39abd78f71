"""The attack on word vectors of the study of DPNR: on texts of one's own, and its three situations again."""
