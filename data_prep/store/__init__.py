"""A prepared corpus on disk: its columns, its incidence of users, sentences and entities, and its manifest."""
