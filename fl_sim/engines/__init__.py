"""Where rounds are computed: in this process, or on Flower and Ray."""
