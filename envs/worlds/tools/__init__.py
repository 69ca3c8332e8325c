"""Worlds that the policy acts on by calling tools."""
