"""The character of the bandit's names, train and test alike: what a larger model knows anyway.

A small policy has read no books; without this it could not know that a pirate is bold. Whether
boldness pays is not said here.
"""

from __future__ import annotations

STEADY = frozenset(
    {
        "Accountant", "Archivist", "Auditor", "Baker", "Carpenter", "Clerk", "Dentist", "Farmer",
        "Gardener", "Janitor", "Judge", "Librarian", "Notary", "Nurse", "Pharmacist", "Plumber",
        "Postman", "Shepherd", "Tailor", "Teacher",
    }
)  # fmt: skip
BOLD = frozenset(
    {
        "Acrobat", "Adventurer", "Astronaut", "Daredevil", "Diver", "Explorer", "Founder",
        "Gambler", "Inventor", "Matador", "Outlaw", "Pirate", "Prospector", "Racer", "Raider",
        "Rebel", "Smuggler", "Speculator", "Spy", "Stuntman",
    }
)  # fmt: skip
