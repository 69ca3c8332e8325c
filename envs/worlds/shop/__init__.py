"""A shop: search, look at products, choose options, buy what was asked for."""
