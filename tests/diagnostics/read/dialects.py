"""Writes one table of metrics in every dialect that trainers and scripts use.

A dialect is made of parts that are drawn independently: names, how a number is written, what stands
before a line, how a step is said, what stands between pairs. `test_dialects.py` reads each
combination back.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

SUCCESS = "rollout/success_rate"
RETURN = "reward/return_mean"
ENTROPY = "policy/entropy"
KL = "policy/ref_kl"
GRAD = "optim/grad_norm"
LENGTH = "rollout/response_length_mean"

NAMES: dict[str, tuple[str, ...]] = {
    RETURN: (
        *("reward", "mean_reward", "Mean Reward", "avg reward", "rewards/mean", "reward_mean"),
        *("Episode Reward Mean", "rollout/ep_rew_mean", "ep_rew_mean", "return", "return/mean"),
        *("avg_episode_return", "charts/episodic_return", "score", "avg_score", "Average Score"),
        *("R", "rew", "mean100", "critic/rewards/mean", "critic/score/mean", "train/reward"),
        *("env_runners/episode_return_mean", "episode_reward_mean", "Total Reward", "avg_reward"),
        *("cumulative_reward", "AverageReturn", "AverageEpRet", "EpRet", "eprewmean", "Reward"),
        *("mean_episode_reward", "reward_avg_100", "Avg Reward (last 100)", "total_score"),
        *("Average reward per episode", "episode/reward", "rollout/reward", "MeanReward"),
        *("train/mean_return", "mean_ep_ret", "reward/mean", "rollout_reward", "avg_return"),
        *("Environment/Cumulative Reward", "reward_per_episode", "mean_score", "Ep Reward"),
    ),
    SUCCESS: (
        *("success_rate", "success", "Success Rate", "accuracy", "train_acc", "acc", "win_rate"),
        *("Win rate", "winrate", "pass@1", "pass_rate", "solve rate", "solve_rate", "Accuracy"),
        *("exact_match", "train/accuracy", "mean_accuracy", "rollout/success_rate", "solved_rate"),
        *("success_rate_100", "avg_success_rate", "train/success", "answer_accuracy", "is_success"),
        *("correct_rate", "frac_correct", "env/success_rate", "batch accuracy", "train/acc_mean"),
    ),
    ENTROPY: (
        *("entropy", "policy_entropy", "actor/entropy", "Entropy", "mean_entropy", "ent"),
        *("train/entropy", "losses/entropy", "Policy Entropy", "entropy_mean", "avg_entropy"),
        *("action_entropy", "entropy/mean", "token_entropy", "ppo/policy/entropy"),
    ),
    KL: (
        *("kl", "KL", "kl_div", "actor/kl_loss", "mean_kl", "kl_mean", "KL divergence", "train/kl"),
        *("kl_to_ref", "ref_kl", "KL_ref", "avg_kl", "kl_loss", "kl/mean"),
    ),
    GRAD: (
        *("grad_norm", "Grad Norm", "gradient norm", "actor/grad_norm", "gnorm", "train/grad_norm"),
        *("gradient_norm", "total_grad_norm", "grad_norm/policy"),
    ),
    LENGTH: (
        *("response_length", "completion_length", "completions/mean_length", "Avg Response Len"),
        *("response_length/mean", "mean_response_tokens", "gen_len", "avg_output_tokens"),
        *("mean_completion_length", "avg_response_length", "Mean Generation Length"),
    ),
}
"""Our key -> what others call it."""

RANGES = {RETURN: (-40, 400), SUCCESS: (0, 1), ENTROPY: (0.1, 4), KL: (0, 2), GRAD: (0.01, 9)}
NOISE = ("loss", "lr", "fps", "time_elapsed", "epsilon", "buffer_size", "reward_std", "max_reward")


@dataclass(frozen=True, kw_only=True)
class Table:
    """What is written, and what must be read back."""

    steps: tuple[int, ...]
    columns: dict[str, tuple[float, ...]]
    """By the name that is written."""
    keys: dict[str, str]
    """Name -> our key; a name without one is noise."""

    def rows(self) -> list[tuple[int, dict[str, float]]]:
        names = list(self.columns)
        by_row = zip(*self.columns.values(), strict=True)
        return [
            (s, dict(zip(names, v, strict=True))) for s, v in zip(self.steps, by_row, strict=True)
        ]


@st.composite
def tables(draw: st.DrawFn, *, num_roles: int = 4) -> Table:
    """An outcome, some other metrics, some noise, over 8 to 14 steps."""
    num = draw(st.integers(8, 14))
    start, stride = draw(st.sampled_from([(0, 1), (1, 1), (10, 10), (100, 100), (2048, 2048)]))
    steps = tuple(start + stride * i for i in range(num))
    outcome = draw(st.sampled_from([RETURN, SUCCESS]))
    others = draw(st.lists(st.sampled_from([ENTROPY, KL, GRAD, LENGTH]), unique=True, max_size=3))
    columns: dict[str, tuple[float, ...]] = {}
    keys = {}
    for key in [outcome, *others][:num_roles]:
        name = draw(st.sampled_from(NAMES[key]))
        low, high = RANGES.get(key, (20, 900))
        places = 3 if key != RETURN else 2
        value = st.floats(low, high, allow_nan=False).map(lambda v, p=places: round(v, p) + 0.0)
        values = draw(st.lists(value, min_size=num, max_size=num))
        if key == RETURN:
            values[0], values[1] = 12.25, -3.5  # no share, whatever was drawn
        columns[name], keys[name] = tuple(values), key
    for name in draw(st.lists(st.sampled_from(NOISE), unique=True, max_size=3)):
        columns[name] = tuple(round(0.37 + 0.01 * i, 3) for i in range(num))
    order = draw(st.permutations(list(columns)))
    return Table(steps=steps, columns={name: columns[name] for name in order}, keys=keys)


NUMBERS: dict[str, Callable[[float], str]] = {
    "plain": lambda v: f"{v:g}" if abs(v) < 1e5 else repr(v),
    "repr": repr,
    "fixed": lambda v: f"{v:.4f}",
    "signed": lambda v: f"{v:+.3f}",
    "scientific": lambda v: f"{v:.6e}",
    "padded": lambda v: f"{v:>9.3f}",
}

PREFIXES: dict[str, str] = {
    "nothing": "",
    "python logging": "2026-01-02 03:04:05,678 - trainer - INFO - ",
    "logging": "INFO:root:",
    "level": "[INFO] ",
    "time": "[03:04:05] ",
    "date": "[2026-01-02 03:04:05] ",
    "loguru": "2026-01-02 03:04:05.678 | INFO     | pkg.train:main:42 - ",
    "colours": "\x1b[32m2026-01-02 03:04:05\x1b[0m \x1b[1mINFO\x1b[0m ",
    "rank": "[rank0]: ",
    "ray": "\x1b[36m(TaskRunner pid=7, ip=10.0.0.1)\x1b[0m ",
    "module": "trainer.py:123 ",
    "name": "[Trainer] ",
    "glog": "I0102 03:04:05.678901 140 train.py:12] ",
    "absl": "I1122 10:00:00.123456 1234567 logging_writer.py:48] ",
    "accelerate": "01/02/2026 03:04:05 - INFO - __main__ - ",
    "bullet": "- ",
    "emoji": "📊 ",
    "arrow": ">>> ",
    "wandb": "wandb: ",
    "iso": "2026-01-02T03:04:05.678Z ",
    "verl": "(main_task pid=77) ",
    "slurm": "0: ",
    "docker": "trainer-1  | ",
    "megatron": " [2026-01-02 03:04:05] ",
    "tagged": "[GRPO] ",
}

STEPS: dict[str, Callable[[int], str]] = {
    "Step 1/9": lambda s: f"Step {s}/99999",
    "step=1": lambda s: f"step={s}",
    "step: 1": lambda s: f"step: {s}",
    "[Step 1]": lambda s: f"[Step {s}]",
    "[1/9]": lambda s: f"[{s}/99999]",
    "Iteration 1": lambda s: f"Iteration {s}",
    "Iter 1:": lambda s: f"Iter {s:5d}",
    "Episode 1": lambda s: f"Episode {s}",
    "Episode: 1": lambda s: f"Episode: {s}",
    "Ep 1": lambda s: f"Ep {s}",
    "Update #1": lambda s: f"Update #{s}",
    "Update 1/9": lambda s: f"Update {s}/99999",
    "Step: [1/9]": lambda s: f"Step: [{s}/99999]",
    "global_step=1": lambda s: f"global_step={s}",
    "training step 1": lambda s: f"Training step {s}",
    "Timesteps: 1": lambda s: f"Timesteps: {s}",
    "it 1": lambda s: f"it {s}",
    "Epoch 1": lambda s: f"Epoch {s}",
    "#1": lambda s: f"Round {s}",
    "t=1": lambda s: f"t={s}",
}

EQUALS = ("=", ": ", ":", " = ", " : ", " ")
BETWEEN = (", ", " | ", " ", "; ", "\t", " - ", "  ", " || ", " · ", ",", " / ", " • ")


def line_table(
    table: Table,
    *,
    prefix: str,
    step: Callable[[int], str],
    after_step: str,
    equals: str,
    between: str,
    number: Callable[[float], str],
    name: Callable[[str], str] = str,
) -> str:
    out = []
    for s, values in table.rows():
        pairs = [f"{name(n)}{equals}{number(v)}" for n, v in values.items()]
        out.append(f"{prefix}{step(s)}{after_step}{between.join(pairs)}")
    return "\n".join(out) + "\n"


@st.composite
def lines(draw: st.DrawFn) -> tuple[Table, str]:
    """A line a step."""
    table = draw(tables())
    equals, between = draw(st.sampled_from(EQUALS)), draw(st.sampled_from(BETWEEN))
    if equals == " " and between == " ":
        between = " | "  # nobody could tell where a name begins
    step = draw(st.sampled_from(list(STEPS.values())))
    spaced = any(" " in n for n in table.columns)
    if between == " " and spaced:
        between = ", "
    if between == " / " and equals == " ":
        between = " | "
    if between == "\t" and equals == " ":
        equals = ": "
    after = draw(st.sampled_from([" | ", ": ", ", ", " - ", "; "]))
    text = line_table(
        table,
        prefix=draw(st.sampled_from(list(PREFIXES.values()))),
        step=step,
        after_step=after,
        equals=equals,
        between=between,
        number=draw(st.sampled_from(list(NUMBERS.values()))),
    )
    return table, text


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Table, str]:
    """A line for the step, then a line a metric."""
    table = draw(tables())
    head = draw(
        st.sampled_from(
            [
                "{}",
                "=== {} ===",
                "---- {} ----",
                "{}:",
                "[{}]",
                "\n{}\n" + "-" * 30,
                "#" * 20 + "\n{}\n" + "#" * 20,
                "🚀 {}",
            ]
        )
    )
    bullet = draw(st.sampled_from(["", "  ", "  - ", "  • ", "\t", "* ", "  📈 ", "├─ ", "   > "]))
    dots = draw(st.sampled_from([": ", " = ", ":  ", " : ", " ...... ", "=", ":\t"]))
    width = draw(st.sampled_from([0, 30]))
    prefix = draw(st.sampled_from(list(PREFIXES.values())))
    step = draw(st.sampled_from(list(STEPS.values())))
    number = draw(st.sampled_from(list(NUMBERS.values())))
    is_last_line_blank = draw(st.booleans())
    out = []
    for s, values in table.rows():
        out += [f"{prefix}{line}" for line in head.format(step(s)).split("\n")]
        out += [f"{prefix}{bullet}{n:<{width}}{dots}{number(v)}" for n, v in values.items()]
        out += [""] if is_last_line_blank else []
    return table, "\n".join(out) + "\n"


def literal(value: float, style: str) -> str:
    if style == "numpy":
        return f"np.float64({value!r})"
    if style == "tensor":
        return f"tensor({value!r}, device='cuda:0')"
    if style == "text":
        return f"'{value!r}'"
    return repr(value)


@st.composite
def dictionaries(draw: st.DrawFn) -> tuple[Table, str]:
    """Python's dictionaries, as `print(metrics)` writes them, or pprint."""
    table = draw(tables())
    style = draw(st.sampled_from(["plain", "numpy", "tensor", "text"]))
    prefix = draw(st.sampled_from(list(PREFIXES.values())))
    step = draw(st.sampled_from([None, *STEPS.values()]))
    between = draw(st.sampled_from([", ", ",\n "]))
    quote = draw(st.sampled_from(["'", '"']))
    out = []
    for s, values in table.rows():
        pairs = [f"{quote}{n}{quote}: {literal(v, style)}" for n, v in values.items()]
        if step is None:
            pairs.insert(0, f"{quote}step{quote}: {s}")
        head = f"{step(s)}: " if step else ""
        out.append(f"{prefix}{head}{{{between.join(pairs)}}}")
    return table, "\n".join(out) + "\n"


@st.composite
def postfixes(draw: st.DrawFn) -> tuple[Table, str]:
    """What stands behind a progress bar, each state after a carriage return."""
    table = draw(tables())
    equals = draw(st.sampled_from(["=", ": "]))
    end = draw(st.sampled_from(["\r", "\n"]))
    out = []
    for i, (s, values) in enumerate(table.rows()):
        pairs = ", ".join(f"{n}{equals}{v:.6g}" for n, v in values.items())
        out.append(f"Training:  {i}%|▌     | {s}/99999 [00:0{i % 10}<01:00,  1.43it/s, {pairs}]")
    return table, end.join(out) + end


@st.composite
def delimited(draw: st.DrawFn) -> tuple[Table, str]:
    table = draw(tables())
    sep = draw(st.sampled_from([",", ";", "\t", "|", ", ", " "]))
    if sep == " ":
        table = Table(
            steps=table.steps,
            columns={n.replace(" ", "_"): v for n, v in table.columns.items()},
            keys={n.replace(" ", "_"): k for n, k in table.keys.items()},
        )
    is_comma = sep == ";" and draw(st.booleans())
    head = draw(
        st.sampled_from(
            [
                "",
                "# made by a script\n",
                "Run of 2026-01-02\n\n",
                "# seed: 1\n# lr: 1e-4\n\n",
                "algo: ppo\nseed: 1\nenv: CartPole-v1\n",
                '#{"t_start": 1700000000.1, "env_id": "CartPole-v1"}\n',
            ]
        )
    )
    step = draw(st.sampled_from(["step", "Step", "iteration", "episode", "Episode", "epoch"]))
    has_index = draw(st.booleans()) and sep != " "
    quoting = csv.QUOTE_ALL if sep in ",;" and draw(st.booleans()) else csv.QUOTE_MINIMAL
    units = draw(st.booleans()) and sep != " "
    file = io.StringIO()
    file.write(head)
    writer = csv.writer(file, delimiter=sep[0], quoting=quoting, lineterminator="\n")
    pad = " " if sep == ", " else ""
    names = [step, *table.columns]
    writer.writerow([*([""] if has_index else []), *(f"{pad}{n}" for n in names)])
    if units:
        writer.writerow([*([""] if has_index else []), *(f"{pad}[-]" for _ in names)])
    for i, (s, values) in enumerate(table.rows()):
        cells = [str(s), *map(repr, values.values())]
        cells = [c.replace(".", ",") for c in cells] if is_comma else cells
        writer.writerow([*([str(i)] if has_index else []), *(f"{pad}{c}" for c in cells)])
    return table, file.getvalue()


@st.composite
def long_form(draw: st.DrawFn) -> tuple[Table, str]:
    """A row holds one metric."""
    table = draw(tables())
    name, value = draw(
        st.sampled_from([("metric", "value"), ("tag", "value"), ("name", "val"), ("key", "value")])
    )
    rows = [{"step": s, name: n, value: v} for s, values in table.rows() for n, v in values.items()]
    if draw(st.booleans()):
        return table, "\n".join(map(json.dumps, rows))
    file = io.StringIO()
    writer = csv.DictWriter(file, ["step", name, value])
    writer.writeheader()
    writer.writerows(rows)
    return table, file.getvalue()


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> str:
    widths = [max(len(str(r[i])) for r in [header, *rows]) for i in range(len(header))]

    def row(cells: Sequence[str], left: str, middle: str, right: str) -> str:
        return left + middle.join(f" {c:>{w}} " for c, w in zip(cells, widths, strict=True)) + right

    def rule(left: str, middle: str, right: str, line: str) -> str:
        return left + middle.join(line * (w + 2) for w in widths) + right

    if style == "markdown":
        out = [row(header, "|", "|", "|"), rule("|", "|", "|", "-")]
        return "\n".join([*out, *(row(r, "|", "|", "|") for r in rows)])
    if style == "prettytable":
        line = rule("+", "+", "+", "-")
        return "\n".join(
            [line, row(header, "|", "|", "|"), line]
            + [row(r, "|", "|", "|") for r in rows]
            + [line]
        )
    if style == "psql":
        out = [row(header, "", "|", ""), rule("", "+", "", "-")]
        return "\n".join([*out, *(row(r, "", "|", "") for r in rows)])
    if style == "rich":
        out = [rule("┏", "┳", "┓", "━"), row(header, "┃", "┃", "┃"), rule("┡", "╇", "┩", "━")]
        return "\n".join([*out, *(row(r, "│", "│", "│") for r in rows), rule("└", "┴", "┘", "─")])
    if style == "double":
        out = [rule("╔", "╦", "╗", "═"), row(header, "║", "║", "║"), rule("╠", "╬", "╣", "═")]
        return "\n".join([*out, *(row(r, "║", "║", "║") for r in rows)])
    if style == "rst":
        line = " ".join("=" * (w + 2) for w in widths)
        return "\n".join(
            [line, row(header, "", " ", ""), line] + [row(r, "", " ", "") for r in rows] + [line]
        )
    if style == "org":
        out = [row(header, "|", "|", "|"), rule("|", "+", "|", "-")]
        return "\n".join([*out, *(row(r, "|", "|", "|") for r in rows)])
    return "\n".join(row(r, "", "", "") for r in [header, *rows])


GRIDS = ("markdown", "prettytable", "psql", "rich", "double", "rst", "org", "spaces")


@st.composite
def grids(draw: st.DrawFn) -> tuple[Table, str]:
    """A table drawn with characters: a row a step."""
    table = draw(tables())
    number = draw(st.sampled_from([NUMBERS["plain"], NUMBERS["fixed"], NUMBERS["signed"]]))
    header = [draw(st.sampled_from(["step", "Step", "Iter", "Episode", "epoch"])), *table.columns]
    rows = [[str(s), *map(number, values.values())] for s, values in table.rows()]
    before = draw(st.sampled_from(["", "Some words.\n\n", "## Results\n", "\n\n"]))
    style = draw(st.sampled_from(GRIDS))
    if style in ("spaces", "rst"):
        header = [name.replace(" ", "_") for name in header]
        table = Table(
            steps=table.steps,
            columns={n.replace(" ", "_"): v for n, v in table.columns.items()},
            keys={n.replace(" ", "_"): k for n, k in table.keys.items()},
        )
    prefix = draw(st.sampled_from(["", "", PREFIXES["python logging"], PREFIXES["time"]]))
    text = grid(header, rows, style)
    return table, before + "\n".join(prefix + line for line in text.split("\n")) + "\n"


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Table, str]:
    """A box a step, a metric a row (stable-baselines, rich, spinning up)."""
    table = draw(tables())
    style = draw(st.sampled_from(["prettytable", "rich", "markdown", "sb3", "ascii"]))
    step = draw(
        st.sampled_from(["iterations", "step", "n_updates", "Iteration", "total_timesteps"])
    )
    prefix = draw(st.sampled_from(["", "", PREFIXES["colours"], PREFIXES["ray"]]))
    out = []
    for s, values in table.rows():
        rows = [[n, f"{v:.6g}"] for n, v in [(step, s), *values.items()]]
        if style in ("sb3", "ascii"):
            text = "\n".join(["-" * 40, *(f"| {n:<34} | {v:<12} |" for n, v in rows), "-" * 40])
        else:
            text = grid(["metric", "value"], rows, style)
        out += [prefix + line for line in text.split("\n")]
        out += [f"{prefix}saving the model"] if draw(st.booleans()) else []
    return table, "\n".join(out) + "\n"


JSON_SHAPES: dict[str, Callable[[Table], object]] = {
    "array": lambda t: [{"step": s, **v} for s, v in t.rows()],
    "columns": lambda t: {"step": list(t.steps), **{n: list(v) for n, v in t.columns.items()}},
    "columns without a step": lambda t: {n: list(v) for n, v in t.columns.items()},
    "history": lambda t: {
        "config": {"lr": 1e-4, "seed": 1, "layers": [64, 64]},
        "history": [{"step": s, **v} for s, v in t.rows()],
    },
    "log_history": lambda t: {
        "global_step": t.steps[-1],
        "epoch": 1.0,
        "log_history": [{**v, "step": s} for s, v in t.rows()],
    },
    "nested": lambda t: [{"step": s, "metrics": v, "time": {"wall": 1.5}} for s, v in t.rows()],
    "two nests": lambda t: {
        "run": {
            "name": "a",
            "training": {"episodes": [{"episode": s, "stats": v} for s, v in t.rows()]},
        }
    },
    "named points": lambda t: {
        n: [{"step": s, "value": x} for s, x in zip(t.steps, v, strict=True)]
        for n, v in t.columns.items()
    },
}


@st.composite
def json_documents(draw: st.DrawFn) -> tuple[Table, str]:
    table = draw(tables())
    shape = draw(st.sampled_from(list(JSON_SHAPES)))
    if shape == "columns without a step":
        table = Table(
            steps=tuple(range(1, len(table.steps) + 1)), columns=table.columns, keys=table.keys
        )
    document = JSON_SHAPES[shape](table)
    return table, json.dumps(document, indent=draw(st.sampled_from([None, 1, 4])))


@st.composite
def json_lines(draw: st.DrawFn) -> tuple[Table, str]:
    table = draw(tables())
    shape = draw(st.sampled_from(["flat", "nested", "data", "event", "split", "kinds"]))
    step = draw(
        st.sampled_from(
            [
                "step",
                "global_step",
                "_step",
                "iteration",
                "training_iteration",
                "episode",
                "epoch",
                "update",
                "trainer/global_step",
            ]
        )
    )
    out: list[str] = []
    for s, values in table.rows():
        if shape == "flat":
            rows = [{step: s, "time": 1.7e9 + s, "note": "x", **values}]
        elif shape == "nested":
            rows = [{step: s, "train": values}]
        elif shape == "data":
            rows = [{step: s, "data": values}]
        elif shape == "event":
            rows = [{"event": "train", "ts": "2026-01-02T03:04:05", step: s, "metrics": values}]
        elif shape == "kinds":
            rows = [
                {"type": "sample", "text": "abc", "id": s},
                {"type": "train", step: s, **values},
            ]
        else:
            rows = [{step: s, n: v} for n, v in values.items()]
        out += map(json.dumps, rows)
    head = draw(st.sampled_from(["", json.dumps({"config": {"lr": 1e-4}, "seed": 1}) + "\n"]))
    return table, head + "\n".join(out) + "\n"


@st.composite
def notebooks(draw: st.DrawFn) -> tuple[Table, str]:
    kind = draw(st.sampled_from(["stream", "html", "plain"]))
    if kind == "html":
        table = draw(tables())
        head = "".join(f"<th>{n}</th>" for n in ["Step", *table.columns])
        body = "".join(
            "<tr>" + "".join(f"<td>{x}</td>" for x in [s, *v.values()]) + "</tr>"
            for s, v in table.rows()
        )
        html = f"<div><progress value='1'></progress></div><table><thead><tr>{head}</tr></thead>"
        output = {
            "output_type": "display_data",
            "data": {
                "text/html": [f"{html}<tbody>{body}</tbody></table><p>"],
                "text/plain": ["<IPython.core.display.HTML object>"],
            },
        }
    else:
        table, text = draw(st.one_of(lines(), dictionaries(), boxes(), grids(), postfixes()))
        if kind == "stream":
            output = {
                "output_type": "stream",
                "name": "stdout",
                "text": text.splitlines(keepends=True),
            }
        else:
            output = {"output_type": "execute_result", "data": {"text/plain": text}}
    noise = {"output_type": "stream", "name": "stderr", "text": ["Loading shards: 100% 2/2\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# PPO"]},
        {"cell_type": "code", "source": ["train()"], "outputs": [noise, output]},
    ]
    return table, json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}, indent=1)


DIALECTS = {
    f.__name__: f
    for f in (
        lines,
        blocks,
        dictionaries,
        postfixes,
        delimited,
        long_form,
        grids,
        boxes,
        json_documents,
        json_lines,
        notebooks,
    )
}
