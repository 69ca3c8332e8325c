"""`python -m echoscope` is the command `echoscope`."""

from echoscope.cli import main

if __name__ == "__main__":
    main()
