"""The control plane: API and background loops. Stateless; any number of replicas."""
