"""Training and measuring the named-entity pipeline that ships."""
