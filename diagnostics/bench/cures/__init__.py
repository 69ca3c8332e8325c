"""CureBench: which treatment helps which collapse, recorded once, and the tables made from it."""
