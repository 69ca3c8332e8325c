"""Proofs: theorems that are proved step by step, with Lean as the judge."""
