"""How far the shipped policies generalise: the table of docs/evaluating.md, made anew.

    python -m benchmarks.generalisation [--tasks 200] [--page docs/evaluating.md]

Each policy plays the suite `generalisation` of the worlds that it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from echoscope.core.evaluation import play
from echoscope.core.evaluation.plan import Budget, settings_for
from echoscope.core.evaluation.suites import SUITES, origin_of
from echoscope.core.evaluation.who import resolve
from echoscope.diagnostics.measure.outcomes import WorldTable, unpaired_estimate

from .common import between_marks, markdown_table, read_options, temporary_folder

PLAYERS = (("tiny", "frozen_lake"), ("tiny", "sokoban"), ("tiny", "bandit"))
PLAYERS += (("tiny-puzzles", "countdown"),)
PLAYERS += tuple(("tiny-puzzles", world) for world in SUITES["generalisation"] if ":" in world)
"""Of a library's world there is no recipe: the policy plays it as the world shows itself."""
BEGIN, END = "<!-- generalisation -->", "<!-- end of generalisation -->"


def played(policy: str, recipe: str, tasks: int) -> list[WorldTable]:
    who = resolve(policy)
    is_of_library = ":" in recipe
    settings = settings_for(
        who,
        envs=[recipe] if is_of_library else (),
        recipe=None if is_of_library else recipe,
        suite="generalisation",
        tasks=tasks,
        siblings=1,
    )
    with temporary_folder() as folder:
        evaluation = play.start(
            who,
            settings,
            folder / "run",
            budget=Budget(),
            on_progress=lambda done, of: None,
            should_stop=lambda: False,
        )
    return [table for table in evaluation.tables if table.tag != "all"]


def rows(policy: str, tables: Sequence[WorldTable]) -> list[str]:
    """Of a world that the policy never solves one row: its gaps would say nothing."""
    success = {table.tag: table.success for table in tables}
    if not any(each.value for each in success.values()):
        own = next(table for table in tables if origin_of(table.tag) is None)
        return [f"| {policy} | {own.tag.partition(' / ')[0]}, all | {own.success.as_rate()} |  |"]
    lines = []
    for table in tables:
        own = success.get(origin_of(table.tag) or "")
        gap = "" if own is None else unpaired_estimate(table.success, own).as_points()
        lines.append(f"| {policy} | {table.tag} | {table.success.as_rate()} | {gap} |")
    return lines


def main() -> None:
    arguments = read_options(__doc__, tasks=200, page=(Path, "The page whose table is replaced."))
    lines = [
        f"The shipped policies, {arguments.tasks} tasks of each world, temperature 1:",
        "",
        markdown_table(("policy", "world", "success (95 %)", "gap to its own tasks (95 %)")),
    ]
    for policy, recipe in PLAYERS:
        lines += rows(policy, played(policy, recipe, arguments.tasks))
    table = "\n".join(lines)
    print(table)
    if arguments.page is not None:
        text = arguments.page.read_text(encoding="utf-8")
        arguments.page.write_text(between_marks(text, BEGIN, END, table), encoding="utf-8")


if __name__ == "__main__":
    main()
