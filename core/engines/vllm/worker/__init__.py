"""What runs inside vLLM's own processes? These files import nothing of this package."""
