"""What does text alone tell about the reasoning? No model is needed."""
