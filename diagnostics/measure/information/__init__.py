"""How much does the reasoning tell about its prompt? Measured with a model."""
