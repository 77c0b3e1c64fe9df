"""The queue: who is written together, what a text depends on, who is refused, and when work stops."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.serve import queue
from tta_diffusion.serve.limits import Limits
from tta_diffusion.serve.metrics import Metrics
from tta_diffusion.serve.models import Served
from tta_diffusion.serve.plan import plan
from tta_diffusion.serve.queue import Done, Drafts, Failed, Job, Refused, Worker
from tta_diffusion.serve.schema import Completion, Rewrite

MOOD = "sentiment=negative"


@dataclass
class Ear:
    """Hears what a job emits."""

    heard: list = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event):
        self.heard.append(event)
        if not isinstance(event, Drafts):
            self.over.set()

    @property
    def last(self):
        assert self.over.wait(60)
        return self.heard[-1]

    @property
    def texts(self):
        assert isinstance(self.last, Done), self.last
        return [text.text for text in self.last.texts]


class Counted(Metrics):
    """Remembers how large the batches were."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def batch(self, texts, waited):
        self.batches.append(texts)


@pytest.fixture(scope="module")
def served(pipeline):
    return Served("tiny", pipeline)


@contextmanager
def worker(served, **settings):
    found = Worker({"tiny": served}, Counted(), **settings)
    yield found
    found.stop()
    if found.is_alive():
        found.join(60)
    assert not found.is_alive()


def ask(served, asked=None, watched=False, **body):
    ear = Ear()
    asked = asked or Completion(**({"steps": 4} | body))
    return Job(plan(asked, served, Limits()), ear, watched), ear


def test_requests_of_one_manner_share_a_batch(served, pipeline):
    with worker(served) as found:
        bodies = [
            {"prompt": "the pizza", "seed": 3},
            {"prompt": "we", "seed": 9, "n": 2},
            {"prompt": "the lake", "seed": 1, "control": [MOOD]},
            {"prompt": "the lake", "seed": 5},
        ]
        asked = [ask(served, **body) for body in bodies]
        for job, _ in asked:
            found.submit(job)
        found.start()
        texts = [ear.texts for _, ear in asked]
    assert found.metrics.batches == [4, 1]
    for body, own in zip(bodies, texts, strict=True):
        n = body.get("n", 1)
        alone = [
            pipeline(body["prompt"], control=body.get("control"), seed=body["seed"] + i, steps=4).texts[0]
            for i in range(n)
        ]
        assert own == alone


def test_a_large_request_is_written_in_parts_and_keeps_its_order(served, pipeline):
    with worker(served, batch_size=3) as found:
        large, small = ask(served, prompt=["we", "the lake"], n=4, seed=2), ask(served, prompt="the book", seed=2)
        for job, _ in (large, small):
            found.submit(job)
        found.start()
        assert large[1].texts == pipeline(["we", "the lake"], num_samples=4, seed=2, steps=4).texts
        assert small[1].texts == pipeline("the book", seed=2, steps=4).texts
    assert found.metrics.batches == [3, 3, 3]


def test_candidates_count_towards_the_batch(served, pipeline):
    with worker(served, batch_size=4) as found:
        job, ear = ask(served, watched=True, prompt="we", n=3, seed=2, candidates=2, control=MOOD)
        found.submit(job)
        found.start()
        assert ear.texts == pipeline("we", control=MOOD, num_samples=3, seed=2, steps=4, candidates=2).texts
    assert found.metrics.batches == [2, 1]
    assert {place for event in ear.heard[:-1] for place, _ in event.texts} == {0, 1, 2}


def test_what_is_written_apart_is_shown_in_its_places(served, pipeline):
    """A call that writes its rows in several batches: each draft belongs to its own text."""
    with worker(served, batch_size=2) as found:
        again = Rewrite(text="the pizza was bad", time=0.9, n=5, seed=4, steps=3)
        varied = Completion(prompt="we", n=5, seed=4, steps=3, variety=1.5)
        asked = [ask(served, one, watched=True) for one in (again, varied)]
        for job, _ in asked:
            found.submit(job)
        found.start()
        wanted = [
            pipeline.rewrite("the pizza was bad", 0.9, num_samples=5, seed=4, steps=3).texts,
            pipeline("we", num_samples=5, seed=4, steps=3, variety=1.5).texts,
        ]
        for (_, ear), texts in zip(asked, wanted, strict=True):
            assert ear.texts == texts
            final = {place: draft for event in ear.heard[:-1] for place, draft in event.texts}
            assert {place: "".join(draft["tokens"]) for place, draft in final.items()} == dict(enumerate(texts))
    assert found.metrics.batches == [5, 5]


def test_a_full_queue_refuses(served):
    with worker(served, most=1) as found:
        found.submit(ask(served)[0])
        with pytest.raises(Refused, match="1 requests wait already") as error:
            found.submit(ask(served)[0])
        assert error.value.status == 429


def test_work_that_nobody_waits_for_stops(served, monkeypatch):
    def step(self, pipeline, number, u, info):
        steps.append(info.steps)
        return real(self, pipeline, number, u, info)

    steps, real = [], queue._Watcher.__call__
    monkeypatch.setattr(queue._Watcher, "__call__", step)
    with worker(served) as found:
        job, ear = ask(served, watched=True, steps=1000, prompt="we", temperature=5)
        other, late = ask(served, prompt="the lake")
        gone, nothing = ask(served, prompt="the book")
        for one in (job, other, gone):
            found.submit(one)
        found.cancel(gone)
        found.start()
        while len(ear.heard) < 3:
            time.sleep(0.01)
        found.cancel(job)
        assert late.texts
        assert found.idle
    assert steps.count(1000) < 500
    assert not any(isinstance(event, Done) for event in ear.heard)
    assert nothing.heard == []


def test_stopping_finishes_what_runs_and_refuses_the_rest(served):
    with worker(served, batch_size=1) as found:
        running, ear = ask(served, watched=True, steps=60, prompt="we", n=2)
        waiting, refused = ask(served, prompt="the lake", steps=60)
        found.submit(running)
        found.submit(waiting)
        found.start()
        while not ear.heard:
            time.sleep(0.01)
        found.stop()
        assert refused.last == Failed(503, queue.STOPPING.message)
        with pytest.raises(Refused, match="stopping"):
            found.submit(ask(served)[0])
        assert len(ear.texts) == 2


def test_one_request_does_not_spoil_the_others(served, monkeypatch):
    def write(pieces, *args, **settings):
        if any(piece.prompt == "hate" for piece in pieces):
            raise ValueError("the guidance gradient is not finite")
        return real(pieces, *args, **settings)

    real = queue.write
    monkeypatch.setattr(queue, "write", write)
    with worker(served) as found:
        asked = [ask(served, prompt=prompt, seed=1) for prompt in ("we", "hate", "the lake")]
        for job, _ in asked:
            found.submit(job)
        found.start()
        assert asked[1][1].last == Failed(400, "the guidance gradient is not finite")
        assert len(asked[0][1].texts) == len(asked[2][1].texts) == 1


def test_a_bug_is_answered_and_the_worker_goes_on(served, monkeypatch):
    with worker(served) as found:
        found.start()
        with monkeypatch.context() as patch:
            patch.setattr(queue, "write", lambda *args, **settings: 1 / 0)
            job, ear = ask(served, prompt="we")
            found.submit(job)
            assert (ear.last.status, "log" in ear.last.message) == (500, True)
        job, ear = ask(served, prompt="we")
        found.submit(job)
        assert ear.texts


def test_a_seed_for_each_prompt(pipeline):
    together = pipeline(["we", "the lake"], seed=[3, 9], num_samples=2, steps=3)
    assert together.seeds == [3, 4, 9, 10]
    assert together.texts[2:] == pipeline("the lake", seed=9, num_samples=2, steps=3).texts
    with pytest.raises(ValueError, match="1 seeds for 2 prompts"):
        pipeline(["we", "the lake"], seed=[3])


@pytest.mark.slow
def test_a_text_of_a_real_model_does_not_depend_on_its_batch():
    """Rounding does not differ either: products have the same shapes in a batch as alone."""
    pipeline = TTAPipeline.from_pretrained()
    served = Served("tiny", pipeline)
    asked = {"prompt": ["The lake", "Once upon a time"], "control": [MOOD], "seed": 7, "steps": 6}
    with worker(served) as found:
        job, ear = ask(served, **asked)
        found.submit(job)
        found.start()
        assert ear.texts == [pipeline(**asked | {"prompt": prompt}).texts[0] for prompt in asked["prompt"]]
