"""`tta bench speed-table` on tiny models: every kind of row, what is made for it, and what the table says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
import yaml

from causal import TOKENIZER, make_causal, save_causal
from tta_diffusion.baselines.causal import CausalLM
from tta_diffusion.baselines.recipes import MODULES, SHIPPED
from tta_diffusion.baselines.registry import Setup
from tta_diffusion.bench.methods.dglm_parts import DGLMOptions, dglm_parts
from tta_diffusion.bench.methods_speed import load_speed_table, speed_table
from tta_diffusion.bench.speed.paper import TABLE as PAPER
from tta_diffusion.cli.bench import app
from tta_diffusion.cli.errors import guard

TASK = {
    "control": "sentiment",
    "labels": ["negative", "positive"],
    "samples": 2,
    "length": 12,
    "prompts": ["the pizza was very good and", "this movie is a bad place"],
    "settings": {"steps": 3, "allocation": "adaptive:0.6", "strength": 20, "iterations": 1},
}
DGLM = "tta_diffusion.bench.methods.dglm_parts:method"
TINY = {
    "pieces": 4,
    "piece": 8,
    "width": 32,
    "heads": 2,
    "depth": 2,
    "soft": 4,
    "encoder_layers": 1,
    "encoder_width": 32,
}
ROWS = [
    {"name": "Sampling", "method": "sampling", "paper": "GPT-2 (base)"},
    {"name": "LM-Steer", "method": "lm-steer", "paper": "LM-steer"},
    {"name": "LD4LG", "method": "ld4lg", "settings": {"steps": 2}},
    {"name": "DGLM", "method": DGLM, "paper": "DGLM", "settings": {"steps": 50, **TINY}, "note": "no texts"},
    {"name": "Diffusion-LM", "regime": "gaussian", "settings": {"steps": 2, "allocation": "constant", "strength": 0.1}},
    {"name": "Free", "control": False, "settings": {"steps": 2}},
    {"name": "Mix", "method": "mix-match", "settings": {"sweeps": 2, "new_tokens": 2}},
]


def bench(*arguments: object) -> int:
    app.rich_markup_mode = None
    found = typer.main.get_command(app)
    return guard(lambda: found.main(args=[str(a) for a in arguments], prog_name="tta", standalone_mode=False))


@pytest.fixture
def words(tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The command, with our model a tiny one."""
    monkeypatch.setenv("TTA_MODEL", str(model_directory))
    save_causal(tmp_path / "tiny")
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(TASK))
    (tmp_path / "speed.yaml").write_text(yaml.safe_dump({"task": str(tmp_path / "task.yaml"), "rows": ROWS}))
    where = ["--base", tmp_path / "tiny", "--out", tmp_path / "out", "--device", "cpu"]
    return ["speed-table", tmp_path / "speed.yaml", *where, "--batch", "1,2", "--rounds", 1]


def test_every_row_is_timed(words: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*words) == 0
    shown = capsys.readouterr().out
    assert (tmp_path / "out" / "table.md").read_text().removeprefix("# Speed\n\n") in shown
    cells = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in shown.splitlines() if " | " in line
    }
    assert [cells["Sampling"][i] for i in (1, 3, 5, 6)] == ["–", "1.0", "1.0", "1.0"]
    assert cells["DGLM"][1] == "50"
    assert cells["DGLM"][6] == "4.4"
    assert cells["LM-Steer °"][6] == "1.2"
    assert {"LD4LG °", "Diffusion-LM °", "Mix °", "Free"} <= set(cells)
    assert "DGLM: no texts." in shown
    texts = [json.loads(line)["text"] for line in (tmp_path / "out/dglm/timing/1/samples.jsonl").open()]
    assert set(texts) == {TASK["prompts"][0]}  # DGLM writes none
    kept = (tmp_path / "out/sampling/timing.json").read_text()
    assert bench(*words, "--only", "DGLM") == 0  # nothing is timed again, no row is lost
    assert (tmp_path / "out/sampling/timing.json").read_text() == kept
    assert "Mix °" in capsys.readouterr().out
    assert bench(*words[:-1], 2) == 2  # other rounds: seconds of two kinds would stand in one table
    assert "rounds 1, now 2" in capsys.readouterr().err


def test_texts_are_of_full_length(words: list[object], tmp_path: Path) -> None:
    """Whatever a method would have written: a short text would pass for speed."""
    assert bench(*words, "--only", "LM-Steer") == 0
    for row in ("sampling", "lmsteer"):
        record = json.loads((tmp_path / "out" / row / "timing/2/run.json").read_text())
        assert record["used"]["min_new_tokens"] == 12
        assert record["used"]["batch_size"] == 2


def test_ratios(tmp_path: Path) -> None:
    rows = load_speed_table(SHIPPED / "speed.yaml").rows
    for name, seconds in (("sampling", {"1": 0.5, "32": 0.1}), ("pplm", {"1": 10.0})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "timing.json").write_text(json.dumps(seconds))
    about = {"base": "b", "layers": 12, "parameters": 124e6, "device": "d", "threads": 1, "dtype": "x", "torch": "y"}
    table = speed_table(rows, tmp_path, (1, 32), about | {"rounds": 3})
    assert table.rows == (
        ("Sampling", "–", "0.5", "1.0", "0.1", "1.0", "1.0"),
        ("PPLM °", "–", "10", "20.0", "–", "–", "270.1"),
    )


def test_the_shipped_table_has_every_method_and_every_row_of_the_paper() -> None:
    table = load_speed_table(SHIPPED / "speed.yaml")
    assert {row.method for row in table.rows} == {"tta", DGLM, *MODULES}
    assert {(row.paper, row.steps) for row in table.rows if row.paper} == {(name, steps) for name, steps, _ in PAPER}


def test_the_parts_of_dglm_do_their_work() -> None:
    """Passes: one of the encoder, T of the diffusion, one of the prompts' network, one a token of the base."""
    base = CausalLM(make_causal(), TOKENIZER, "tiny")
    writer = dglm_parts(Setup(base), DGLMOptions(length=12, min_new_tokens=12, steps=7, **TINY))
    count: dict[str, int] = {}

    def counted(name: str) -> object:
        return lambda *_: count.update({name: count.get(name, 0) + 1})

    networks = {
        "encoder": writer.parts.encoder,
        "diffusion": writer.parts.denoiser,
        "prompts": writer.parts.prompter.writer,
        "language model": base.model.base_model,
    }
    for name, network in networks.items():
        network.register_forward_hook(counted(name))
    assert writer(["the movie"] * 2, "positive", [1, 2]) == ["the movie"] * 2
    written = 12 - 1 - 2  # tokens of the text, less the start token and the prompt
    assert count == {"encoder": 1, "diffusion": 7, "prompts": 1, "language model": 1 + written}
    assert writer.parts.prompter.decode(torch.zeros(2, 4, 8)).shape == (2, 4, 32)


def test_published_sizes() -> None:
    options = DGLMOptions()
    assert options.diffusion.latents * options.diffusion.dim == options.prompts.latents * options.prompts.dim == 768
    assert (options.depth, options.prompts.depth, options.prompts.latents, options.steps) == (12, 6, 8, 50)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"name": "A", "paper": "GeDi"}], "no 'GeDi' with T = None"),
        ([{"name": "A", "paper": "DGLM", "settings": {"steps": 9}}], "no 'DGLM' with T = 9"),
        ([{"name": "A"}, {"name": "a"}], "a name of its own"),
    ],
)
def test_wrong_files(rows: list[object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"rows": rows}))
    assert bench("speed-table", tmp_path / "t.yaml", "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err


def test_wrong_words(words: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    for more, said in (
        (("--only", "LM-Stear"), "Did you mean 'LM-Steer'"),
        (("--rounds", 0), "rounds must be at least 1"),
        (("--batch", "1,x"), "not a list of whole numbers"),
    ):
        assert bench(*words, *more) == 2
        assert said in capsys.readouterr().err
    for wrong, said in (
        ({"depth": 3}, "depth must be even"),
        ({"soft": 5}, "soft must divide"),
        ({"steps": 0}, "steps"),
    ):
        with pytest.raises(ValueError, match=said):
            DGLMOptions(**wrong)  # type: ignore[arg-type]
