"""The checkout itself is the package: a folder of links gives it its name, for every tool alike.

`.package/echoscope` links to the folders of this checkout. An editable install puts
`.package` on Python's path with a plain `.pth`, which editors, type checkers and ruff read as
well as Python does; a wheel copies what the links lead to.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
LINKS = ROOT / ".package"


def link_the_package() -> None:
    """Link every folder that holds Python code of the package, and its single files.

    A source distribution holds the files in the place of the links: nothing is left to do there.
    """
    if not (ROOT / "__init__.py").exists():
        return
    package = LINKS / "echoscope"
    package.mkdir(parents=True, exist_ok=True)
    folders = [init.parent for init in ROOT.glob("*/__init__.py")]
    parts = {part.name for part in [*folders, *ROOT.glob("__*__.py"), ROOT / "py.typed"]}
    # A right link stays: programs that run now import through it.
    for link in package.iterdir():
        if link.is_symlink() and link.name not in parts:
            link.unlink()
    for name in parts:
        if not (package / name).is_symlink():
            (package / name).symlink_to(Path("..", "..", name))


link_the_package()
setup(package_dir={"": ".package"}, packages=find_packages(".package"))
