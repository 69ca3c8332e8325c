"""What other trainers wrote below the root: what a look finds, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from browsing import until
from rollout_import import import_run

from echoscope.dashboard.data import foreign
from echoscope.dashboard.data.foreign import ForeignSource, ForeignSources, is_root, is_source
from echoscope.store.query.listing import RunList

FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"


def put(root: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(FIXTURES / name, root / name)


def look(root: Path, given: tuple[Path, ...] = ()) -> dict[str, ForeignSource]:
    listed = RunList(root)
    listed.rows()
    sources = looked(ForeignSources(root, given), *listed.others)
    return {source.path.name: source for source in sources}


def looked(sources: ForeignSources, *names: str) -> tuple[ForeignSource, ...]:
    """What the next look sees, which is waited for."""
    sources._next = 0.0  # it is time
    sources.known(names)
    until(lambda: sources._next > 0.0, "look at the files")
    return sources._seen


def test_a_look_says_what_each_folder_and_file_is(tmp_path: Path) -> None:
    put(tmp_path, "ragen", "verl", "trl", "verifiers", "messages")
    metrics = [{"step": s, "critic/score/mean": 0.5, "actor/entropy": 1.0} for s in range(4)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("nothing here")
    sources = look(tmp_path)
    of_rollouts = {name for name, source in sources.items() if source.has_rollouts}
    assert of_rollouts == {"ragen", "verl", "trl", "verifiers", "messages"}
    assert sources["log.jsonl"].has_metrics
    assert sources["verl"].num_files == 3
    sizes = [file.stat().st_size for file in (tmp_path / "verl").rglob("*.jsonl")]
    assert sources["verl"].num_bytes == sum(sizes)
    assert not sources["notes"].is_known


def test_runs_are_no_sources(tmp_path: Path) -> None:
    import_run(FIXTURES / "verl", tmp_path / "a-run", is_packing=False)
    (tmp_path / "more").mkdir()
    shutil.copytree(tmp_path / "a-run", tmp_path / "more" / "inner")
    sources = look(tmp_path)
    assert list(sources) == ["more"]
    assert sources["more"].problem.startswith("holds runs; open it with: echoscope dashboard")


def test_a_link_out_of_the_root_is_never_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    put(tmp_path, "verl")
    (tmp_path / "verl").rename(outside)
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "val" / "10.jsonl")
    (root / "inside").mkdir()
    (root / "inside" / "10.jsonl").symlink_to(outside / "val" / "10.jsonl")
    sources = look(root)
    assert {name: source.is_known for name, source in sources.items()} == dict.fromkeys(
        sources, False
    )
    assert "leads out of the root" in sources["link"].problem
    assert "leads out of the root" in sources["file"].problem
    assert sources["inside"].num_bytes == 0


def test_code_beside_its_data_hides_nothing_but_an_example_does_not_count(tmp_path: Path) -> None:
    metrics = "step,actor/entropy\n1,0.5\n2,0.4\n"
    for name, num_texts in (("training", 2), ("handbook", 9), ("given", 9), ("rollouts", 9)):
        (tmp_path / name).mkdir()
        for number in range(num_texts):
            (tmp_path / name / f"{number}.py").write_text("pass")
        if name == "rollouts":
            shutil.copy(FIXTURES / "messages" / "chat.jsonl", tmp_path / name)
        else:
            (tmp_path / name / "metrics.csv").write_text(metrics)
    sources = look(tmp_path, (tmp_path / "given",))
    is_known = {name: source.is_known for name, source in sources.items()}
    assert is_known == {"training": True, "handbook": False, "given": True, "rollouts": True}


def test_what_the_command_line_named_may_lie_anywhere(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    put(tmp_path, "verl")
    assert look(root, (tmp_path / "verl",))["verl"].is_known


def test_files_are_read_again_only_when_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "messages")
    read: list[Path] = []
    real = foreign._read

    def counting(source: ForeignSource, *, is_given: bool) -> ForeignSource:
        read.append(source.path)
        return real(source, is_given=is_given)

    monkeypatch.setattr(foreign, "_read", counting)
    sources = ForeignSources(tmp_path)
    before = looked(sources, "messages")[0]
    looked(sources, "messages")
    assert len(read) == 1
    with (tmp_path / "messages" / "chat.jsonl").open("a") as file:
        file.write("{}\n")
    after = looked(sources, "messages")[0]
    assert (len(read), after.num_bytes > before.num_bytes) == (2, True)


def test_a_look_counts_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_FILES", 5)
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(9):
        (folder / f"part-{number}.jsonl").write_text("{}\n")
    source = look(tmp_path)["many"]
    assert (source.num_files, source.is_known) == (5, False)


def test_a_page_never_waits_for_a_look(tmp_path: Path) -> None:
    put(tmp_path, "messages")
    sources = ForeignSources(tmp_path)
    assert sources.known(["messages"]) == ()
    deadline = time.monotonic() + 20
    while not sources._next and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [source.has_rollouts for source in sources.known(["messages"])] == [True]


def test_hostile_files_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)) * 50)
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert not any(source.is_known for source in look(tmp_path).values())


def test_a_folder_is_a_root_if_it_holds_runs_or_several_trainings(tmp_path: Path) -> None:
    assert not is_root(FIXTURES / "verl"), "rollouts/ and val/ are of one training"
    assert is_source(FIXTURES / "verl")
    root = tmp_path / "experiments"
    root.mkdir()
    for name in ("first-try", "second-try"):
        shutil.copytree(FIXTURES / "ragen", root / name)
        assert is_root(root)
    assert not is_root(root / "first-try")
