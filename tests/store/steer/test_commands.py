"""The mailbox: each command once, in order; what is no command is refused and never crashes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import NotARunError, StoreError
from echoscope.store.log.durable import with_checksum
from echoscope.store.log.packing import pack
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.commands import Mailbox, new_command, post, wait_for_ack
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


def acknowledge(command_id: str, step: int = 1) -> CommandAck:
    return CommandAck(command_id=command_id, step=step, outcome=CommandOutcome.APPLIED)


def test_commands_arrive_once_and_in_order(finished_run: Path) -> None:
    mailbox = Mailbox(finished_run)
    assert mailbox.drain() == []
    sent = [
        new_command("run-1", "pause", issued_by="me", reason="look"),
        new_command("run-1", "set", settings={"optim.lr": 0.5, "selection.value": None}),
        new_command("run-1", CommandAction.STOP, ttl_s=None),
    ]
    for command in sent:
        post(finished_run, command)
    assert mailbox.drain() == sent
    assert mailbox.drain() == []
    assert mailbox.take_refusals(0) == []


def test_an_acknowledged_command_never_runs_again(writer: RunWriter, run_path: Path) -> None:
    """Not in this process, not in the next one, not after the journal was packed."""
    command = new_command("run-1", "stop")
    post(run_path, command)
    assert [state.ack for state in open_run(run_path).commands()] == [None]
    writer.record_acks([acknowledge(command.command_id)])
    writer.close(status="stopped")
    for _ in range(2):
        with RunWriter.resume(run_path, from_step=-1, is_packing=False) as again:
            assert Mailbox(run_path, again.seen_command_ids).drain() == []
        pack(run_path)
        assert list((run_path / "commands").iterdir()) == []
    (state,) = open_run(run_path).commands()
    assert (state.command, state.ack) == (command, acknowledge(command.command_id))


def test_a_command_waits_for_the_next_process(finished_run: Path) -> None:
    command = new_command("run-1", "pause")
    post(finished_run, command)
    pack(finished_run)
    with RunWriter.resume(finished_run, from_step=2, is_packing=False) as again:
        assert Mailbox(finished_run, again.seen_command_ids).drain() == [command]


def test_an_expired_command_expires(finished_run: Path) -> None:
    command = new_command("run-1", "stop", ttl_s=0.0)
    post(finished_run, command)
    mailbox = Mailbox(finished_run)
    assert mailbox.drain() == []
    (ack,) = mailbox.take_refusals(7)
    assert (ack.command_id, ack.step, ack.outcome) == (
        command.command_id,
        7,
        CommandOutcome.EXPIRED,
    )
    assert mailbox.take_refusals(7) == []


GOOD = {
    "command_id": "c",
    "run_id": "run-1",
    "issued_at": 1.0,
    "issued_by": "",
    "action": "pause",
    "settings": "{}",
    "reason": "",
    "expires_at": None,
}


def command_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(with_checksum(value)).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff\x00", ""),
        (b"[1]", "not a JSON object"),
        (b"[" * 60_000, ""),
        (b"{}", "its content changed after it was written"),
        (b"x" * 70_000, "more than 65536 bytes"),
        ({"run_id": "run-2"}, "meant for run 'run-2'"),
        ({"action": "explode"}, "'explode' is not a valid CommandAction"),
        ({"settings": "[1]"}, "must be an object"),
        ({"settings": 3}, "JSON object must be str"),
        ({"issued_at": "soon"}, "could not convert string to float"),
        ({"issued_at": 10**400}, "too large"),
        ({"action": ["stop"]}, "['stop'] is not a valid CommandAction"),
        ({"command_id": ""}, "command_id must be 1 to 200 printable characters"),
        ({"command_id": "x" * 201}, "command_id must be 1 to 200"),
        ({"command_id": "a\nb"}, "printable"),
        ({"command_id": "\ud800"}, "printable"),
    ],
)
def test_what_is_no_command_is_refused_once(
    writer: RunWriter, run_path: Path, content: bytes | dict[str, Any], why: str
) -> None:
    data = content if isinstance(content, bytes) else command_bytes(GOOD | content)
    (run_path / "commands" / "1.json").write_bytes(data)
    good = new_command("run-1", "resume")
    post(run_path, good)
    mailbox = Mailbox(run_path)
    assert mailbox.drain() == [good]
    assert mailbox.drain() == []
    (ack,) = mailbox.take_refusals(3)
    assert (ack.command_id, ack.outcome) == ("file:1.json", CommandOutcome.REJECTED)
    assert ack.detail.startswith("commands/1.json is not a command: ")
    assert why in ack.detail
    writer.record_acks([ack, acknowledge(good.command_id)])
    writer.close(status="stopped")
    reader = open_run(run_path)
    assert [state.command for state in reader.commands()] == [good]
    events = reader.sql("SELECT outcome FROM command_events ORDER BY outcome").to_pylist()
    assert [row["outcome"] for row in events] == ["applied", "rejected"]
    with RunWriter.resume(run_path, from_step=-1, is_packing=False) as again:
        later = Mailbox(run_path, again.seen_command_ids)
        assert later.drain() == []
        assert later.take_refusals(0) == []
    pack(run_path)
    assert list((run_path / "commands").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_commands(finished_run: Path, tmp_path: Path, kind: str) -> None:
    path = finished_run / "commands" / "1.json"
    if kind == "link":
        target = tmp_path / "target.json"
        target.write_bytes(command_bytes(GOOD))
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    mailbox = Mailbox(finished_run)
    assert mailbox.drain() == []
    assert [ack.outcome for ack in mailbox.take_refusals(0)] == [CommandOutcome.REJECTED]


def test_an_unfinished_file_is_not_looked_at(finished_run: Path) -> None:
    (finished_run / "commands" / "1.tmp").write_bytes(b"{")
    mailbox = Mailbox(finished_run)
    assert mailbox.drain() == []
    assert mailbox.take_refusals(0) == []


def test_settings_belong_to_set() -> None:
    with pytest.raises(ValueError, match="settings belong to 'set'"):
        new_command("r", "resume", settings={"a": 1})
    with pytest.raises(ValueError, match="settings belong to 'set'"):
        new_command("r", "set")
    with pytest.raises(ValueError, match="'explode' is not a valid"):
        new_command("r", "explode")


def test_posting_wants_a_run_and_a_command_of_sane_size(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotARunError):
        post(tmp_path, new_command("run-1", "pause"))
    with pytest.raises(StoreError, match="more than 65536"):
        post(finished_run, new_command("run-1", "pause", reason="x" * 70_000))
    assert list((finished_run / "commands").iterdir()) == []


def test_waiting_for_an_acknowledgement(writer: RunWriter, run_path: Path) -> None:
    command = new_command("run-1", "pause")
    post(run_path, command)
    assert wait_for_ack(run_path, command.command_id, timeout_s=0.1) is None

    def trainer() -> None:
        time.sleep(0.1)
        writer.record_acks([acknowledge(command.command_id, step=4)])
        writer.flush()

    thread = threading.Thread(target=trainer)
    thread.start()
    ack = wait_for_ack(run_path, command.command_id, timeout_s=30)
    thread.join()
    assert ack == acknowledge(command.command_id, step=4)
    writer.close(status="stopped")
    pack(run_path)
    assert wait_for_ack(run_path, command.command_id, timeout_s=0) == ack


def test_a_body_given_with_its_acknowledgement_needs_no_file(
    writer: RunWriter, run_path: Path
) -> None:
    command = new_command("run-1", "checkpoint", issued_by="alarm")
    writer.record_acks([acknowledge(command.command_id)], commands=[command])
    posted = new_command("run-1", "evaluate")
    post(run_path, posted)
    writer.record_acks([acknowledge(posted.command_id, step=0)])
    writer.record_acks([acknowledge(command.command_id)], commands=[command])
    writer.flush()
    reader = open_run(run_path)
    assert [state.command for state in reader.commands()] == [command, posted]
    assert reader.sql("FROM commands").num_rows == 2


# -- a mailbox that somebody filled ----------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the command files that are opened, one by one."""
    names: list[str] = []
    real_open = os.open

    def counted(path: Any, *args: Any, **options: Any) -> int:
        if "/commands/" in str(path) and str(path).endswith(".json"):
            names.append(Path(path).name)
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "open", counted)
    return names


def test_a_number_of_401_digits_is_refused_by_itself(writer: RunWriter, run_path: Path) -> None:
    """It raised OverflowError in trainer, resume, query, show, status and `runs list`."""
    (run_path / "commands" / "0.json").write_bytes(command_bytes(GOOD | {"issued_at": 10**400}))
    good = new_command("run-1", "resume")
    post(run_path, good)
    assert [state.command for state in open_run(run_path).commands()] == [good]
    mailbox = Mailbox(run_path)
    assert mailbox.drain() == [good]
    (ack,) = mailbox.take_refusals(1)
    assert ack.outcome is CommandOutcome.REJECTED
    assert len(ack.detail) < 400
    writer.record_acks([ack])


@pytest.mark.parametrize("what", ["file", "folder inside"])
def test_a_mailbox_that_is_no_folder_of_commands_stops_nothing(
    finished_run: Path, what: str
) -> None:
    folder = finished_run / "commands"
    if what == "file":
        folder.rmdir()
        folder.write_text("x")
    else:
        (folder / "1.json").mkdir()
    assert Mailbox(finished_run).drain() == []
    assert open_run(finished_run).commands() == []


@pytest.mark.long
def test_a_flood_of_files_is_read_a_few_at_a_time_and_each_once(
    finished_run: Path, opened: list[str]
) -> None:
    """5,000 files: the trainer opens at most 256 of them between two turns, and each one once."""
    folder = finished_run / "commands"
    for number in range(5_000):
        (folder / f"{number:020d}-junk.json").write_text("{")
    stop = new_command("run-1", "stop")
    post(finished_run, stop)
    opened.clear()
    mailbox = Mailbox(finished_run)
    fresh, per_look = [], []
    while not fresh:
        before = len(opened)
        fresh = mailbox.drain()
        per_look.append(len(opened) - before)
    assert fresh == [stop]
    assert (len(per_look), max(per_look)) == (20, 256)
    assert mailbox.drain() == []
    assert len(opened) == len(set(opened)) == 5_001
    assert len(mailbox.take_refusals(1)) == 5_000
    assert mailbox.take_refusals(2) == []
    assert len(list(folder.iterdir())) == 1
    opened.clear()
    assert Mailbox(finished_run).drain() == [stop]
    assert [state.command for state in open_run(finished_run).commands()] == [stop]
    # Whoever comes later reads none of the junk again.
    assert len([name for name in opened if "junk" in name]) == 0


def test_a_quiet_mailbox_is_not_even_listed(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished_run / "commands" / "junk.json").write_text("{")
    os.utime(finished_run / "commands", (1.0, 1.0))
    mailbox = Mailbox(finished_run)
    mailbox.drain()
    os.utime(finished_run / "commands", (1.0, 1.0))  # the junk was moved aside
    mailbox.drain()
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("listed again"))
    assert mailbox.drain() == []


def test_acknowledging_many_commands_reads_each_file_once(
    writer: RunWriter, run_path: Path, opened: list[str]
) -> None:
    sent = [new_command("run-1", "evaluate", ttl_s=-1) for _ in range(60)]
    for command in sent:
        post(run_path, command)
    opened.clear()
    for command in sent:
        writer.record_acks([acknowledge(command.command_id)])
    writer.flush()
    assert len(opened) == 60
    assert len(open_run(run_path).commands()) == 60


def test_a_changed_command_is_refused(finished_run: Path) -> None:
    post(finished_run, new_command("run-1", "set", settings={"optim.lr": 0.001}))
    (path,) = (finished_run / "commands").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.009"))
    mailbox = Mailbox(finished_run)
    assert mailbox.drain() == []
    (refusal,) = mailbox.take_refusals(0)
    assert refusal.detail.endswith(
        "its content changed after it was written, or `echoscope` did not write it"
    )
