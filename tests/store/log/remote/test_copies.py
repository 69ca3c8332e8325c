"""A run far away is the run: every row, while it grows, after packing, whatever is cut off.

The root is a folder of this disk here; `test_object_storage.py` does the same with a server.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equal_runs import assert_equal_runs, content
from made_run import add_steps, make_run, open_writer

from echoscope.diagnostics.judge.advice.fate import fate_of
from echoscope.store.checkpoints import (
    checkpoint_folders,
    checkpoint_path,
    write_checkpoint_manifest,
)
from echoscope.store.errors import NotARunError, StoreError
from echoscope.store.log.durable import to_checked_json_bytes
from echoscope.store.log.layout import shown_path
from echoscope.store.log.packing import pack
from echoscope.store.log.remote import pulling, pushing
from echoscope.store.log.remote.bucket import Bucket, BucketError, remote_address
from echoscope.store.log.remote.manifest import Manifest, manifest_name
from echoscope.store.log.remote.pulling import RemoteRoot, bring_home, local_folder
from echoscope.store.log.remote.pushing import Copier, Pushing
from echoscope.store.log.verify import verify
from echoscope.store.query.listing import RunList
from echoscope.store.reader import open_run, open_runs
from echoscope.store.steer.annotations import Pin, annotate
from echoscope.store.steer.commands import Mailbox, new_command, post
from echoscope.store.writer import RunWriter


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test alone, and copies that look for news at every question."""
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pulling, "EVERY_S", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/runs"


def renamed(path: Path) -> Path:
    """Another run in a folder of the name `a`."""
    return path.rename(path.with_name("a"))


def test_an_address_survives_being_a_path() -> None:
    addresses = ["s3://team/runs", "gs://b/x/y", "file:///mnt/runs", "s3://b/x?scheme=http"]
    assert [remote_address(Path(address)) for address in addresses] == addresses
    assert [remote_address(path) for path in ("runs/a", "/s3/a", "s3:", "s3.txt")] == [None] * 4


def test_a_copy_follows_a_run_through_its_steps_its_packs_and_its_end(
    tmp_path: Path, url: str
) -> None:
    path = tmp_path / "runs" / "a"
    writer = open_writer(path, rotate_every=4)
    add_steps(writer, "a", range(3))
    pushing = Pushing(path, url)
    pushing.push()
    far = open_run(f"{url}/a")
    assert (far.info().status, far.info().last_step) == ("running", 2)
    for steps in (range(3, 6), range(6, 11)):  # the journal's first piece is complete after four
        add_steps(writer, "a", steps)
        pushing.push()
        assert far.info().last_step == steps[-1]
        assert_equal_runs(path, f"{url}/a")
    pack(path, grace_s=0)
    pushing.push()
    assert_equal_runs(path, f"{url}/a")
    writer.close(status="finished")
    pack(path, grace_s=0)
    pushing.push()
    assert far.info().status == "finished"
    assert_equal_runs(path, f"{url}/a")
    assert verify(far.info().path).problems == ()
    assert pushing.push() == 0


def test_a_resumed_run_hides_the_same_steps(tmp_path: Path, url: str) -> None:
    path = make_run(tmp_path / "runs" / "a", 6, status="interrupted")
    pushing = Pushing(path, url)
    pushing.push()
    far = open_run(f"{url}/a")
    writer = RunWriter.resume(path, from_step=3)
    add_steps(writer, "a", range(4, 5), text="another way")
    pushing.push()
    assert (far.info().attempt, far.info().last_step) == (2, 4)
    assert_equal_runs(path, f"{url}/a")
    writer.close(status="finished")


def test_data_comes_when_it_is_read(tmp_path: Path, url: str, cache: Path) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 3), url).push()
    far = open_run(f"{url}/a")
    assert list(cache.rglob("*.parquet")) == []
    far.sql("SELECT avg(episode_return) FROM trajectories")
    assert {path.parent.name for path in cache.rglob("*.parquet")} == {"trajectories"}
    far.trajectory("t00000001-00000")
    turns = [path.name[:8] for path in cache.rglob("turns/*.parquet")]
    assert turns == ["00000001"]


class CutOffError(Exception):
    """The process that copied was killed here."""


def kill_after(monkeypatch: pytest.MonkeyPatch, num_objects: int) -> None:
    """Let a copy write so many objects, and nothing after them."""
    plain, left = Bucket.put, [num_objects]

    def put(bucket: Bucket, name: str, data: bytes | Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise CutOffError
        plain(bucket, name, data)

    monkeypatch.setattr(Bucket, "put", put)


@pytest.mark.long
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_copy_that_is_cut_off_anywhere_shows_a_state_that_the_run_was_in(
    tmp_path: Path, url: str, is_packed: bool
) -> None:
    path = tmp_path / "runs" / "a"
    writer = open_writer(path, rotate_every=3)
    add_steps(writer, "a", range(2))
    Pushing(path, url).push()
    before = content(open_run(path))
    add_steps(writer, "a", range(2, 5))
    if is_packed:
        pack(path, grace_s=0)
    after = content(open_run(path))
    num_cuts = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            kill_after(patch, num_cuts)
            try:
                Pushing(path, url).push()
                break
            except CutOffError:
                num_cuts += 1
        seen = content(open_run(f"{url}/a"))
        assert seen in (before, after)
        assert verify(local_folder(f"{url}/a")).problems == ()
    assert num_cuts > 3
    assert content(open_run(f"{url}/a")) == after
    writer.close(status="finished")


def test_what_no_manifest_names_any_more_is_removed_after_a_while(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path / "runs" / "a", 5)
    copying = Pushing(path, url)
    copying.push()
    pack(path, grace_s=0)
    copying.push()
    names = set(Bucket(url).within("a").names("", is_deep=True))
    assert any(name.startswith("seg/") for name in names), "somebody may still read them"
    monkeypatch.setattr(pushing, "_GRACE_S", -1.0)
    copying.push()
    names = set(Bucket(url).within("a").names("", is_deep=True))
    assert not any(name.startswith("seg/") for name in names)
    assert_equal_runs(path, f"{url}/a")


def test_a_damaged_data_file_is_left_out_and_named(tmp_path: Path, url: str) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 3), url).push()
    (damaged,) = (tmp_path / "bucket/runs/a/seg/turns").glob("00000001-*")
    damaged.write_bytes(damaged.read_bytes()[:-7] + b"garbage")
    far = open_run(f"{url}/a")
    assert far.sql("SELECT DISTINCT step FROM turns ORDER BY step").to_pylist() == [
        {"step": 0},
        {"step": 2},
    ]
    assert any("its content changed after it was written" in text for text in far.warnings)


def rewritten(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of run `a` as somebody may who can write to the bucket."""
    file = root / manifest_name("a")
    value = json.loads(file.read_text())
    value.pop("checksum")
    change(value)
    file.write_bytes(to_checked_json_bytes(value))


@pytest.mark.parametrize(
    "path",
    ["../../x", "/etc/x", "commands/x.json", "pack/000001/../../x", "run.json/x", "copy.json"],
)
def test_a_manifest_writes_only_files_of_a_run(
    tmp_path: Path, url: str, cache: Path, path: str
) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 1), url).push()

    def add(value: dict[str, Any]) -> None:
        value["files"][path] = value["files"]["run.json"]

    rewritten(tmp_path / "bucket/runs", add)
    with pytest.raises(StoreError, match="names a file that no run has"):
        open_run(f"{url}/a")
    assert not cache.exists() or not any(p.is_file() for p in cache.rglob("*"))


@pytest.mark.parametrize(
    "part",
    [
        ["parts/../../../x", 1, "0"],
        ["parts/" + "0" * 32, 10**12, "0"],
        ["parts/" + "0" * 32, -1, "0"],
        "parts",
        [],
    ],
)
def test_a_part_is_named_by_its_content(tmp_path: Path, url: str, part: Any) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 1), url).push()
    rewritten(tmp_path / "bucket/runs", lambda value: value["files"].update({"run.json": [part]}))
    with pytest.raises(StoreError, match="is not the manifest of a run"):
        open_run(f"{url}/a")


def test_bytes_that_are_not_those_of_the_part_are_refused(tmp_path: Path, url: str) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 1), url).push()
    for part in (tmp_path / "bucket/runs/a/parts").iterdir():
        part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(StoreError, match="not the bytes that were written"):
        open_run(f"{url}/a")


def test_a_root_keeps_runs_apart(tmp_path: Path, url: str) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 2), url).push()
    other = renamed(make_run(tmp_path / "elsewhere" / "b", 2))
    with pytest.raises(StoreError, match="holds another run \\('a'\\): rename the folder"):
        Pushing(other, url).push()
    with pytest.raises(NotARunError, match=r"'my run'.*give its folder such a name"):
        Pushing(make_run(tmp_path / "runs" / "my run", 1), url)


def test_the_second_process_that_copies_a_run_takes_over(tmp_path: Path, url: str) -> None:
    path = tmp_path / "runs" / "a"
    writer = open_writer(path)
    add_steps(writer, "a", range(1))
    first = Pushing(path, url)
    first.push()
    Pushing(path, url).push()
    add_steps(writer, "a", range(1, 2))
    second = Pushing(path, url)
    second.push()
    add_steps(writer, "a", range(2, 3))
    with pytest.raises(StoreError, match="another process has begun to copy this run"):
        first.push()
    second.push()
    assert open_run(f"{url}/a").info().last_step == 2
    writer.close(status="finished")


def test_a_run_is_steered_through_its_copy(tmp_path: Path, url: str) -> None:
    path = tmp_path / "runs" / "a"
    writer = open_writer(path)
    add_steps(writer, "a", range(1))
    copying = Pushing(path, url)
    copying.push()
    command = new_command("a", "set", settings={"optim.lr": 1e-4}, issued_by="far")
    post(local_folder(f"{url}/a"), command)
    (waiting,) = open_run(f"{url}/a").commands()
    assert (waiting.command, waiting.ack) == (command, None)
    copying.take_mail()
    copying.take_mail()
    assert Mailbox(path).drain() == [command]
    writer.close(status="finished")


def test_only_commands_are_taken_from_the_mail(tmp_path: Path, url: str) -> None:
    path = tmp_path / "runs" / "a"
    writer = open_writer(path)
    add_steps(writer, "a", range(1))
    mail = tmp_path / "bucket/runs/a/commands"
    mail.mkdir(parents=True)
    good = "01795762384495975447-4fcbc2.json"
    for name, data in {"x.json": b"{}", ".hidden": b"", good: b"0" * 70_000}.items():
        (mail / name).write_bytes(data)
    Pushing(path, url).take_mail()
    assert list((path / "commands").iterdir()) == []
    assert list(mail.iterdir()) == []
    writer.close(status="finished")


def test_nothing_else_writes_to_a_copy(tmp_path: Path, url: str) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 2, status="interrupted"), url).push()
    copy = local_folder(f"{url}/a")
    for write in (
        lambda: RunWriter.resume(copy, from_step=1),
        lambda: annotate(copy, Pin(author="me", at=0.0, is_pinned=True)),
        lambda: pack(copy),
    ):
        with pytest.raises(StoreError, match=r"is a copy of file:.*, which is only read"):
            write()


def test_a_root_lists_all_runs_and_follows_them(tmp_path: Path, url: str) -> None:
    for name in ("a", "b", "c"):
        Pushing(make_run(tmp_path / "runs" / name, 2), url).push()
    runs = open_runs(url)
    assert runs.sql("SELECT run_id FROM runs ORDER BY ALL").to_pylist() == [
        {"run_id": name} for name in "abc"
    ]
    root = RemoteRoot.of(local_folder(url))
    assert root is not None
    Pushing(make_run(tmp_path / "runs" / "d", 2), url).push()
    (tmp_path / "bucket/runs" / manifest_name("a")).unlink()
    root.follow()
    assert sorted(row.run_id for row in RunList(root.folder).rows()) == ["b", "c", "d"]


def test_without_the_storage_the_last_copy_is_shown(tmp_path: Path, url: str) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 2), url).push()
    for address in (url, f"{url}/a"):
        local_folder(address)

    def silent(*_: Any, **__: Any) -> Any:
        raise BucketError("s3://team/runs: Could not connect to server")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "get", silent)
        patch.setattr(Bucket, "names", silent)
        assert open_run(f"{url}/a").info().last_step == 1
        assert len(open_runs(url).sql("FROM runs").to_pylist()) == 1
        with pytest.raises(BucketError, match="Could not connect"):
            open_run(f"{url}2/a")


def test_a_run_whose_manifest_stands_still_is_held_by_nobody(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs" / "a"
    writer = open_writer(path)
    add_steps(writer, "a", range(2))
    Pushing(path, url).push()
    far = open_run(f"{url}/a")
    assert far.info().status == "running"
    monkeypatch.setattr(pulling, "_HELD_S", 0.2)
    time.sleep(0.3)  # the process that copied was killed
    assert far.info().status == "crashed"
    writer.close(status="finished")


def test_a_run_comes_home_with_its_checkpoints_and_goes_on(tmp_path: Path, url: str) -> None:
    path = make_run(tmp_path / "runs" / "a", 3, status="stopped")
    folder = checkpoint_path(path, 2)
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights.safetensors").write_bytes(b"w" * 100)
    (folder / "state.json").write_text("{}")
    write_checkpoint_manifest(folder, step=2, run_id="a")
    Pushing(path, url, takes_checkpoints=True).push()
    counts: list[tuple[int, int]] = []
    home = bring_home(f"{url}/a", tmp_path / "home", lambda done, of: counts.append((done, of)))
    assert counts[-1][0] == counts[-1][1] > 3
    assert verify(home).problems == ()
    assert (checkpoint_path(home, 2) / "model" / "weights.safetensors").read_bytes() == b"w" * 100
    assert_equal_runs(path, home)
    RunWriter.resume(home, from_step=2).close(status="finished")
    with pytest.raises(StoreError, match="home exists: name a folder that does not"):
        bring_home(f"{url}/a", home, lambda done, of: None)
    with pytest.raises(NotARunError, match="no run was copied there"):
        bring_home(f"{url}/b", tmp_path / "other", lambda done, of: None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bucket", "home", "runs"]


def test_a_run_that_copies_itself_takes_its_checkpoints_along_if_asked(
    tmp_path: Path, url: str
) -> None:
    path = make_run(tmp_path / "runs" / "a", 2, status="finished")
    folder = checkpoint_path(path, 2)
    (folder / "model").mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    write_checkpoint_manifest(folder, step=2, run_id="a")
    for takes_checkpoints, num_copied in ((False, 0), (True, 1)):
        Copier(path, url, pytest.fail, takes_checkpoints=takes_checkpoints).close()
        home = bring_home(f"{url}/a", tmp_path / str(takes_checkpoints), lambda done, of: None)
        assert len(checkpoint_folders(home / "checkpoints")) == num_copied


def test_a_copier_says_once_that_it_cannot_and_that_it_can_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "EVERY_S", 0.02)
    path = tmp_path / "runs" / "a"
    writer = open_writer(path)
    add_steps(writer, "a", range(1))
    blocked = tmp_path / "bucket"
    blocked.write_text("not a folder")
    monkeypatch.setattr("echoscope.store.log.remote.bucket._PAUSES_S", (0.01,))
    messages: list[str] = []
    copier = Copier(path, url, messages.append)
    while not messages:
        pass
    blocked.unlink()
    add_steps(writer, "a", range(1, 3))
    writer.close(status="finished")
    copier.close()
    assert [text.split(":")[0] for text in messages] == [
        "cannot copy the run now, and tries again",
        "the copy of the run is complete again",
    ]
    assert_equal_runs(path, f"{url}/a")


def test_a_manifest_reads_what_it_writes(tmp_path: Path, url: str) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 2), url).push()
    data = Bucket(url).get(manifest_name("a"))
    manifest = Manifest.of(data, url)
    assert manifest.to_bytes() == data
    assert set(manifest.files) == {"run.json", "journal.ndjson", "journal.tail"}
    for changed in (b"", b"[]", b"{", data.replace(b'"generation": 1', b'"generation": 2')):
        with pytest.raises(StoreError, match="is not the manifest of a run"):
            Manifest.of(changed, url)


def test_another_run_may_take_a_name_that_is_free_again(tmp_path: Path, url: str) -> None:
    path = make_run(tmp_path / "runs" / "a", 4)
    Pushing(path, url).push()
    assert open_run(f"{url}/a").info().last_step == 3
    shutil.rmtree(tmp_path / "bucket")
    Pushing(renamed(make_run(tmp_path / "new" / "b", 2)), url).push()
    assert (open_run(f"{url}/a").info().run_id, open_run(f"{url}/a").info().last_step) == ("b", 1)


def test_a_copier_does_not_wait_for_a_run_that_could_not_start(tmp_path: Path, url: str) -> None:
    writer = open_writer(tmp_path / "runs" / "a")
    messages: list[str] = []
    copier = Copier(writer.path, url, messages.append)
    writer.close(status="failed")
    shutil.rmtree(writer.path)
    copier.close()
    assert messages == []


def test_a_copy_goes_by_the_address_of_its_run(tmp_path: Path, url: str) -> None:
    """In every command that a page or the diagnosis prints."""
    Pushing(make_run(tmp_path / "runs" / "a", 3, status="stopped"), url).push()
    run = open_run(f"{url}/a")
    assert shown_path(run.path) == f"{url}/a"
    fate = fate_of(run)
    assert fate is not None
    assert fate.command == f"echoscope runs copy {url}/a runs/a"
