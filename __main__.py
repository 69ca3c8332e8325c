"""`python -m echoscope` is the command `echoscope`."""

from .cli import main

if __name__ == "__main__":
    main()
