"""Worlds where the policy writes programs, and the sandbox that runs them."""
