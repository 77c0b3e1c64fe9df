from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tta_diffusion.cli.data import app
from tta_diffusion.data import MixtureSampler, TokenStore
from tta_diffusion.data.config import config_from_dict
from tta_diffusion.data.prepare import prepare
from tta_diffusion.data.tokenizer import load_tokenizer

WORDS = "we all like good pizza and some old films from the large town near a green lake which is very calm".split()  # noqa: SIM905


def write_texts(path: Path, documents: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(documents):
            sentences = [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(rng.randint(2, 9))]
            file.write(json.dumps({"text": " ".join(s.capitalize() + "." for s in sentences)}) + "\n")


def settings(**changes: object) -> dict[str, object]:
    sources = [{"name": "a", "path": "a.jsonl", "weight": 3}, {"name": "b", "path": "b.jsonl"}]
    return {"sources": sources, "length": 24, "vocab_size": 300, "validation_fraction": 0.1, **changes}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_texts(tmp_path / "a.jsonl", 120)
    write_texts(tmp_path / "b.jsonl", 40, seed=1)
    return tmp_path


def test_the_corpus_holds_the_text(data: Path) -> None:
    meta = prepare(config_from_dict(settings(partial=0.0)), data, data / "out")
    store = TokenStore.open(data / "out")
    tokenizer = load_tokenizer(data / "out")
    assert store.meta == meta
    assert store.sources == ["a", "b"]
    assert store.count("validation") > 0
    texts = {json.loads(line)["text"] for line in (data / "a.jsonl").read_text().splitlines()}
    for row in store.batch(range(20)):
        assert row[0] == 2
        text = tokenizer.decode([i for i in row if i > 4])
        assert any(text in whole for whole in texts)
    part = meta["sources"][0]["splits"]["train"]
    assert part["tokens"] == int((store.arrays["train"][0] != 0).sum())


def test_sequences_carry_the_label_of_their_text(data: Path) -> None:
    lines = [
        json.loads(line) | {"score": i / 120} for i, line in enumerate((data / "a.jsonl").read_text().splitlines())
    ]
    (data / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rule = {"name": "score", "column": "score", "above": 0.7, "labels": ["low", "high"]}
    sources = [{"name": "a", "path": "a.jsonl", "label": rule}, {"name": "b", "path": "b.jsonl"}]
    config = settings(sources=sources, partial=0.0, deduplicate=False)
    prepare(config_from_dict(config), data, data / "out")
    store, tokenizer = TokenStore.open(data / "out"), load_tokenizer(data / "out")
    assert store.labels == {"score": ["low", "high"]}
    store.verify()
    sampler = MixtureSampler(store)
    source, _ = sampler.locate(range(200))
    ids, labels = sampler.rows(0, 200), sampler.labels(0, 200)
    assert set(labels[source == 0]) == {1, 2}
    assert set(labels[source == 1]) == {0}
    for row, label in zip(ids[source == 0], labels[source == 0], strict=True):
        text = tokenizer.decode([i for i in row if i > 4])
        assert label in {1 + (line["score"] > 0.7) for line in lines if text in line["text"]}
    (data / "out" / "train-a.labels.bin").write_bytes(bytes(len(store.arrays["train"][0])))
    with pytest.raises(ValueError, match=r"train-a.labels.bin has changed"):
        TokenStore.open(data / "out").verify()
    sources[1]["label"] = {**rule, "labels": ["high", "low"]}
    with pytest.raises(ValueError, match="Sources must agree"):
        config_from_dict(settings(sources=sources))


def test_the_same_input_gives_the_same_fingerprint(data: Path) -> None:
    first = prepare(config_from_dict(settings()), data, data / "one")
    again = prepare(config_from_dict(settings()), data, data / "two")
    other = prepare(config_from_dict(settings(seed=5)), data, data / "three")
    assert first["fingerprint"] == again["fingerprint"] != other["fingerprint"]


def test_a_tokenizer_is_taken_from_a_directory(data: Path) -> None:
    prepare(config_from_dict(settings()), data, data / "one")
    meta = prepare(config_from_dict(settings(tokenizer=str(data / "one"), length=32)), data, data / "two")
    assert meta["length"] == 32
    assert load_tokenizer(data / "two").get_vocab() == load_tokenizer(data / "one").get_vocab()


def test_held_out_and_repeated_paragraphs_stay_out(data: Path) -> None:
    lines = (data / "a.jsonl").read_text().splitlines()
    secret = max((json.loads(line)["text"] for line in lines), key=len)
    (data / "b.jsonl").write_text("\n".join(lines) + "\n")
    (data / "held.jsonl").write_text(json.dumps({"text": secret}) + "\n")
    sources = [{"name": "a", "path": "a.jsonl", "hold_out": "held.jsonl"}, {"name": "b", "path": "b.jsonl"}]
    meta = prepare(config_from_dict(settings(sources=sources)), data, data / "out")
    store, tokenizer = TokenStore.open(data / "out"), load_tokenizer(data / "out")
    everything = [tokenizer.decode([i for i in r if i > 4]) for s in store.arrays for a in store.arrays[s] for r in a]
    assert not [text for text in everything if text in secret and len(text) > 60]
    assert meta["sources"][1]["counts"]["repeated"] > 100


def test_an_empty_corpus_is_an_error(data: Path) -> None:
    with pytest.raises(ValueError, match="The corpus is empty"):
        prepare(config_from_dict(settings(min_tokens=10_000)), data, data / "out")
    with pytest.raises(ValueError, match="no finished corpus"):
        TokenStore.open(data / "out")


def test_the_command_line(data: Path) -> None:
    (data / "c.yaml").write_text(yaml.safe_dump(settings()))
    arguments = ["prepare", "--config", "c.yaml", "--data-dir", ".", "--out", "out", "--length", "16", "--limit", "30"]
    arguments = [str(data / a) if a in ("c.yaml", ".", "out") else a for a in arguments]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert TokenStore.open(data / "out").length == 16
    shown = CliRunner().invoke(app, ["info", str(data / "out")])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("<s>") == 6
    assert isinstance(CliRunner().invoke(app, arguments).exception, ValueError)  # finished already
    assert CliRunner().invoke(app, [*arguments[:-1], "0"]).exit_code == 2  # not all of them


def test_light_imports() -> None:
    code = """
        import sys
        import tta_diffusion.cli.data
        assert not {"torch", "transformers", "numpy"} & set(sys.modules)
        import tta_diffusion.data
        assert not {"torch", "transformers", "tokenizers", "pyarrow", "rich", "yaml"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


RUN = """
    import json, sys
    from tta_diffusion.data.config import config_from_dict
    from tta_diffusion.data.prepare import prepare
    prepare(config_from_dict(json.loads(sys.argv[1])), sys.argv[2], sys.argv[3], overwrite=True)
"""


def start(config: dict[str, object], data: Path, out: Path, before: str = "") -> subprocess.Popen[str]:
    code = textwrap.dedent(before) + textwrap.dedent(RUN)
    arguments = [sys.executable, "-c", code, json.dumps(config), str(data), str(out)]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("finished_before", [False, True])
def test_a_killed_run_leaves_no_corpus_or_the_old_one(data: Path, finished_before: bool) -> None:
    out = data / "out"
    old = prepare(config_from_dict(settings()), data, out) if finished_before else None
    short = (data / "b.jsonl").read_bytes()
    (data / "b.jsonl").write_bytes(short * 500)  # several batches: the kill falls between the first and the last
    process = start(settings(tokenizer_characters=50_000, deduplicate=False), data, out)
    growing = out / ".unfinished" / "train-b.bin"
    while process.poll() is None and not (growing.exists() and growing.stat().st_size):
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    if old is None:
        with pytest.raises(ValueError, match="no finished corpus"):
            TokenStore.open(out)
    else:
        store = TokenStore.open(out)
        store.verify()
        assert store.meta == old
    (data / "b.jsonl").write_bytes(short)
    prepare(config_from_dict(settings()), data, out, overwrite=True)
    TokenStore.open(out).verify()
    assert not (out / ".unfinished").exists()


def test_a_full_disk_is_one_clear_sentence(data: Path) -> None:
    limit = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    """
    write_texts(data / "a.jsonl", 1800)
    process = start(settings(), data, data / "out", before=limit)
    error = process.communicate()[1].strip().splitlines()[-1]
    assert process.returncode == 1
    assert error.startswith("ValueError: No room left to write in")
    assert "choose another --out" in error
    assert not list((data / "out").iterdir())  # what was written is given back


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_memory_does_not_grow_with_the_corpus(data: Path) -> None:
    """Encoded text takes a hundred times the room of the text: keeping it would show."""
    short = (data / "b.jsonl").read_bytes()
    (data / "b.jsonl").write_bytes(short * 120)
    code = """
        import json, sys
        from pathlib import Path
        from tta_diffusion.data.config import config_from_dict
        from tta_diffusion.data.prepare import prepare
        config, data = json.loads(sys.argv[1]), Path(sys.argv[2])
        # Not ru_maxrss: that one is inherited from the process that started this one.
        peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
        prepare(config_from_dict(config), data, data / "one")
        before = peak()
        one = (data / "b.jsonl").read_bytes()
        with (data / "b.jsonl").open("ab") as file:
            for _ in range(3):
                file.write(one)
        prepare(config_from_dict(config), data, data / "two")
        print(len(one) * 3 / 2**20, peak() - before)
    """
    config = settings(tokenizer_characters=100_000, deduplicate=False)
    arguments = [sys.executable, "-c", textwrap.dedent(code), json.dumps(config), str(data)]
    result = subprocess.run(arguments, check=True, capture_output=True, text=True)
    more_text, more_memory = map(float, result.stdout.split())
    assert more_text > 3
    assert more_memory < 60  # allocator noise; keeping the encoded text costs 300
