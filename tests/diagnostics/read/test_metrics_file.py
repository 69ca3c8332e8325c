"""Metrics files of every kind, and of no kind."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.diagnostics.read import table as table_file
from echoscope.diagnostics.read.forms.console_log import pairs_of, step_marker
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import parse_map
from echoscope.diagnostics.read.records import MetricsFileError, to_number
from echoscope.diagnostics.read.table import TableBuilder


def written(folder: Path, text: str | bytes, name: str = "metrics") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_csv_with_gaps_and_text(tmp_path: Path) -> None:
    path = written(tmp_path, "step,entropy,note,reward_std\n0,1.5,a,0.4\n1,,b,\n2,1.4,c,0.3\n")
    table = read_metrics(path)
    assert table.kind == "csv"
    assert table.steps.tolist() == [0, 1, 2]
    assert table.columns["policy/entropy"][[0, 2]].tolist() == [1.5, 1.4]
    assert np.isnan(table.columns["policy/entropy"][1])
    assert table.sources["reward/group_std_mean"] == "reward_std"


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_delimiters_quotes_and_byte_order_marks(tmp_path: Path, delimiter: str) -> None:
    text = f'\ufeff"step"{delimiter}"entropy"\r\n3{delimiter}0.5\r\n'
    table = read_metrics(written(tmp_path, text))
    assert table.steps.tolist() == [3]
    assert table.columns["policy/entropy"].tolist() == [0.5]


def test_repeated_steps_keep_the_later_value(tmp_path: Path) -> None:
    """A resumed run logs some steps again; what it does not log again stays."""
    text = "step,entropy,reward\n0,1,5\n1,2,6\n2,3,7\n1,9,\n2,8,4\n"
    table = read_metrics(written(tmp_path, text))
    assert table.steps.tolist() == [0, 1, 2]
    assert table.columns["policy/entropy"].tolist() == [1, 9, 8]
    assert table.columns["reward/return_mean"].tolist() == [5, 6, 4]
    assert "2 rows repeat" in table.notes[0]


def test_a_column_that_is_a_number_now_and_then(tmp_path: Path) -> None:
    text = "step,entropy\n0,n/a\n1,0.5\n2,-\n3,abc\n"
    table = read_metrics(written(tmp_path, text))
    assert table.columns["policy/entropy"][1] == 0.5
    assert np.isnan(table.columns["policy/entropy"][[0, 2, 3]]).all()


def test_a_written_nan_in_a_loss_is_not_an_empty_cell(tmp_path: Path) -> None:
    """Empty: not logged. NaN: the loss broke. Elsewhere a NaN is just unknown."""
    text = "step,loss,entropy\n0,1.0,1\n1,nan,nan\n2,,2\n"
    table = read_metrics(written(tmp_path, text))
    loss = table.columns["loss/total"]
    assert loss[0] == 1.0
    assert np.isinf(loss[1])
    assert np.isnan(loss[2])
    assert np.isnan(table.columns["policy/entropy"][1])


def test_lines_of_another_length_and_rows_without_a_step_are_counted(tmp_path: Path) -> None:
    text = "step,entropy\n0,1\n1,2,3,4\nx,5\n2,6\n"
    table = read_metrics(written(tmp_path, text))
    assert table.steps.tolist() == [0, 2]
    assert any("1 line with" in note for note in table.notes)
    assert any("1 row without a whole step" in note for note in table.notes)


def test_line_ends_of_old(tmp_path: Path) -> None:
    table = read_metrics(written(tmp_path, b"step,entropy\r0,1\r1,2\r"))
    assert table.columns["policy/entropy"].tolist() == [1, 2]


def test_text_over_several_lines(tmp_path: Path) -> None:
    table = read_metrics(written(tmp_path, 'step,reply,entropy\n0,"a\nb,c",1\n1,d,2\n'))
    assert table.columns["policy/entropy"].tolist() == [1, 2]


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    table = read_metrics(written(tmp_path, b"step,entropy,x\n0,1,\xff\xfe\n1,2,\xff\n"))
    assert table.columns["policy/entropy"].tolist() == [1, 2]


def test_a_long_file_is_averaged_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 rows into at most 2 * 8: pairs of pairs, each at the step of its last row."""
    monkeypatch.setattr(table_file, "MAX_ROWS", 8)
    builder = TableBuilder()
    for step in range(40):
        builder.add_row(step, {"reward": float(step)})
    table = builder.build()
    assert table.num_rows <= 16
    assert table.steps[0] == 3
    assert table.columns["reward/return_mean"][0] == pytest.approx(1.5)  # mean of 0, 1, 2, 3
    assert table.steps[-1] == 39
    assert "averaged in blocks of 4" in table.notes[0]


@pytest.mark.long
@pytest.mark.no_cover  # measuring it takes three times as long as the test
def test_many_rows_in_bounded_memory(tmp_path: Path) -> None:
    rows = 120_000
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("step,entropy\n")
        file.writelines(f"{step},{step % 7}\n" for step in range(rows))
    table = read_metrics(path)
    assert table.num_rows <= 40_000
    assert table.steps[-1] == rows - 1


def test_json_lines_of_verl(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": 1, "data": {"actor/entropy": 0.5, "train/lake/success": 0.1}}),
        "not json",
        json.dumps({"step": 2, "data": {"actor/entropy": 0.4, "tag": "x", "flag": True}}),
        json.dumps({"data": {"actor/entropy": 0.4}}),
        "[1, 2]",
    ]
    table = read_metrics(written(tmp_path, "\n".join(lines)))
    assert table.kind == "json"
    assert table.columns["policy/entropy"].tolist() == [0.5, 0.4]
    assert "2 lines without a JSON object" in table.notes[0]
    assert "1 row without a whole step" in table.notes[1]


def test_json_lines_that_split_a_step(tmp_path: Path) -> None:
    lines = '{"step": 1, "reward": 0.5}\n{"step": 1, "entropy": 2}\n{"step": 2, "reward": 0.6}\n'
    table = read_metrics(written(tmp_path, lines))
    assert table.steps.tolist() == [1, 2]
    assert table.columns["policy/entropy"][0] == 2


def test_trainer_state_of_trl(tmp_path: Path) -> None:
    state = {"best": None, "log_history": [{"step": 10, "reward_std": 0.2}, {"step": 20}, 3]}
    for text in (json.dumps(state), json.dumps(state, indent=1), json.dumps(state["log_history"])):
        table = read_metrics(written(tmp_path, text))
        assert table.columns["reward/group_std_mean"][0] == 0.2


LOG = """\
\x1b[36m(TaskRunner pid=77, ip=10.0.0.1)\x1b[0m step:0 - val-env/lake/success:np.float64(0.25)
loading checkpoint shards - 100%
(TaskRunner pid=77) step:1 - actor/entropy:0.5 - actor/grad_norm:nan - note:text - x:np.int32(3)
step:2 - actor/entropy:4e-1 - train/lake/success:np.float64(0.5)
"""


def test_console_log_of_ragen(tmp_path: Path) -> None:
    table = read_metrics(written(tmp_path, LOG))
    assert table.kind == "log"
    assert table.steps.tolist() == [0, 1, 2]
    assert table.columns["eval/lake/success_rate"][0] == 0.25
    assert table.columns["policy/entropy"][1:].tolist() == [0.5, 0.4]
    assert np.isinf(table.columns["optim/grad_norm"][1])
    assert table.columns["rollout/success_rate"][2] == 0.5


def test_a_log_line_is_parsed_and_never_evaluated() -> None:
    assert pairs_of("step:1 - a:__import__('os') - b:1")[0] == {"step": 1.0, "b": 1.0}
    assert step_marker("no step here") is None


@given(st.text(max_size=200))
def test_no_line_breaks_the_log_parser(line: str) -> None:
    pairs, _ = pairs_of(f"step:1 - {line}")
    assert all(isinstance(value, float) for value in pairs.values())


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.booleans(), st.binary()))
def test_no_value_breaks_numbers(value: object) -> None:
    assert isinstance(to_number(value), float)


@given(st.binary(max_size=400))
def test_no_file_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = written(tmp_path_factory.getbasetemp(), data, "fuzz")
    try:
        read_metrics(path)
    except MetricsFileError as error:
        assert "\n" not in str(error).strip()  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello world\n", "neither a CSV header"),
        ("a,b\n1,2\n", "--map NAME=step"),
        ("step,entropy\n", "no row with a step"),
        ("step,note\n0,a\n", "no column holds numbers"),
        ("{}\n", "holds no metrics"),
        ("{\n", "nor JSON"),
        (b"\x00\x01binary", "is binary"),
        (b"\x01\r;", "neither a CSV header"),
    ],
)
def test_files_that_say_nothing(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(MetricsFileError, match=message):
        read_metrics(written(tmp_path, text))


def test_a_folder_is_no_metrics_file(tmp_path: Path) -> None:
    with pytest.raises(MetricsFileError, match="is a folder"):
        read_metrics(tmp_path)


def test_mapped_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "it,ent\n0,1\n1,2\n")
    mapping = parse_map(["it=step", "ent=policy/entropy"], ["policy/entropy"])
    assert read_metrics(path, mapping).columns["policy/entropy"].tolist() == [1, 2]
    missing = parse_map(["other=policy/entropy"], ["policy/entropy"])
    with pytest.raises(MetricsFileError, match="'other', which is not there"):
        read_metrics(path, missing)


def test_rows_give_what_is_there(tmp_path: Path) -> None:
    table = read_metrics(written(tmp_path, "step,entropy,reward\n0,1,\n1,,2\n"))
    assert list(table.rows()) == [(0, {"policy/entropy": 1.0}), (1, {"reward/return_mean": 2.0})]
    assert table.keys() == ["policy/entropy", "reward/return_mean"]


def test_a_cut_packed_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = "".join(f"{step},{draw.random()}\n" for step in range(2000))
    packed = gzip.compress(f"step,entropy\n{rows}".encode())
    (tmp_path / "m.csv.gz").write_bytes(packed[: int(0.6 * len(packed))])
    table = read_metrics(tmp_path / "m.csv.gz")
    assert 1100 < table.num_rows < 1250
    assert any("was read up to the damage" in note for note in table.notes)
