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
    for link in package.iterdir():
        link.unlink()
    folders = [init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests"]
    for source in [*folders, ROOT / "__init__.py", ROOT / "__main__.py", ROOT / "py.typed"]:
        (package / source.name).symlink_to(Path("..", "..", source.name))


link_the_package()
setup(package_dir={"": ".package"}, packages=find_packages(".package"))
