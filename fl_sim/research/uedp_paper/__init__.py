"""The experiments of the UeDP paper and ours: what each figure needs, how it is made, recorded, drawn and told."""
