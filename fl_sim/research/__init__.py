"""Research on published papers: reproductions of the UeDP paper, and private text representations."""
