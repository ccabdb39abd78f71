"""What a run will cost, and which path its gradients take."""
