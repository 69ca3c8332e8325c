"""Text worlds: the contract, the registry, and the environments themselves."""
