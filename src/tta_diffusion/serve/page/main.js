// Puts the page together: reads the settings, runs one text or two, and remembers them.
import { options as fetchOptions, stream, token } from "./api.js";
import { $, calm, make, say } from "./dom.js";
import { heat } from "./heat.js";
import { Past } from "./history.js";
import { Panel } from "./panel.js";
import { Settings } from "./settings.js";
import { command, curl, inPython } from "./snippets.js";

const options = await fetchOptions().catch((error) => { problem(error.message); throw error; });
const sides = [new Settings("First"), new Settings("Second")];
const actions = { rewrite: (panel) => rewrite(panel), snippet };
const panels = sides.map(() => new Panel(actions));
const past = new Past(open);
let running = null; // aborts what runs
let playing = 0;

function problem(text) {
  $("problem").textContent = text || "";
  $("problem").hidden = !text;
}

const model = () => options.models.find((one) => one.name === $("model").value);
const shown = () => panels.slice(0, $("compare").checked ? 2 : 1);

function choose() {
  for (const side of sides) side.offer(options, model());
  $("prompt").placeholder = model().molecules ? "How does the molecule begin?" : "How does it begin? The pizza …";
}

function layout() {
  const two = $("compare").checked;
  for (const id of ["sides", "panels"]) $(id).classList.toggle("two", two);
  $("sides").replaceChildren(...sides.slice(0, two ? 2 : 1).map((side) => side.node));
  $("panels").replaceChildren(...shown().map((panel) => panel.node));
  for (const side of sides) side.title.hidden = !two;
  replayable();
}

// The second set starts as the first, with the policy changed, so that there is something to compare.
function compare() {
  if ($("compare").checked) {
    const first = sides[0].read(), constant = (first.allocation || model().defaults.allocation) !== "constant";
    sides[1].write({ ...first, allocation: constant ? "constant" : "adaptive:0.6" });
  }
  layout();
}

async function run(jobs) {
  running?.abort();
  stopPlaying();
  problem("");
  const abort = (running = new AbortController());
  const name = $("model").value; // another may be chosen while this one writes
  $("stop").hidden = false;
  $("replay").hidden = true;
  say("Writing.");
  for (const { panel, path, body } of jobs) panel.begin(described(path, body), abort);
  const ended = await Promise.allSettled(jobs.map(async ({ panel, path, body }) => {
    const { times, ...sent } = body;
    let last = 0;
    const choice = await stream(path, sent, abort.signal, (frame) => {
      panel.draft(frame);
      const quarter = Math.floor((4 * frame.step) / frame.steps);
      if (quarter > last && quarter < 4) say(`${quarter * 25} percent: ${frame.tokens.join("")}`);
      last = quarter;
    });
    panel.seconds = (performance.now() - panel.began) / 1000;
    panel.finish(choice, { path, body, model: name });
    past.add({ path, body, choice: { ...choice, molecule: undefined }, model: name });
    say(`Finished: ${choice.full_text}`);
  }));
  for (const { panel } of jobs) if (panel.run === abort) panel.fail(); // else it shows another text already
  const wrong = ended.find((one) => one.status === "rejected" && one.reason.name !== "AbortError");
  if (wrong) problem(wrong.reason.message);
  if (running === abort) {
    running = null;
    $("stop").hidden = true;
    replayable();
  }
}

function write() {
  const seed = $("seed").value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 : Number($("seed").value);
  const more = options.models.length > 1 ? { model: $("model").value } : {};
  return run(shown().map((panel, i) => ({
    panel, path: "/v1/completions", body: { prompt: $("prompt").value, ...sides[i].read(), seed, ...more },
  })));
}

function rewrite(panel) {
  const { keep, time, times } = panel.spans();
  const asked = sides[panels.indexOf(panel)].read();
  const control = (asked.control || []).filter((one) => !/^(keywords|length)=/.test(one)); // they pin tokens of their own
  const body = { ...asked, text: panel.choice.full_text, time, seed: panel.choice.seed + 1 };
  delete body.control;
  if (control.length) body.control = control;
  if (keep.length) Object.assign(body, { keep, times });
  if (options.models.length > 1) body.model = $("model").value;
  return run([{ panel, path: "/v1/rewrite", body }]);
}

function described(path, body) {
  const asked = [...(body.control || []), body.allocation || model().defaults.allocation];
  if (path === "/v1/rewrite") asked.unshift(body.keep ? `rewritten, ${body.keep.length} kept` : "rewritten");
  return asked.join(" · ");
}

function snippet(panel, kind) {
  const { path, body, model: name } = panel.request;
  if (kind === "text") return panel.choice.full_text;
  if (kind === "command") return command(path, body, name);
  return kind === "python" ? inPython(path, body, name) : curl(path, body, token());
}

// An entry of the past: its settings, and its text as it was.
function open(entry) {
  running?.abort();
  if (options.models.some((one) => one.name === entry.model)) $("model").value = entry.model;
  choose();
  $("compare").checked = false;
  layout();
  sides[0].write(entry.body);
  if (entry.body.prompt !== undefined) $("prompt").value = entry.body.prompt;
  $("seed").value = entry.body.seed;
  panels[0].begin(described(entry.path, entry.body));
  panels[0].seconds = 0;
  panels[0].finish(entry.choice, { path: entry.path, body: entry.body, model: entry.model });
  replayable();
  $("stage").scrollIntoView({ behavior: calm() ? "auto" : "smooth" });
}

// Replay: one slider moves all texts.
function replayable() {
  $("replay").hidden = !!running || !shown().some((panel) => panel.choice && panel.frames.length > 1);
  $("moment").value = 1000;
  $("where").textContent = "finished";
}

function moveTo(moment) {
  $("moment").value = moment;
  for (const panel of shown().filter((one) => one.choice && one.frames.length)) {
    const at = Math.min(panel.frames.length - 1, Math.floor((moment / 1000) * panel.frames.length));
    if (moment >= 1000) panel.end();
    else panel.show(at);
    $("where").textContent = moment >= 1000 ? "finished" : `step ${panel.frames[at].step} of ${panel.frames[at].steps}`;
  }
}

function stopPlaying() {
  cancelAnimationFrame(playing);
  playing = 0;
  $("play").textContent = "Replay";
}

function play() {
  if (playing) return stopPlaying();
  const from = Number($("moment").value) >= 1000 ? 0 : Number($("moment").value), began = performance.now();
  $("play").textContent = "Pause";
  const tick = (now) => {
    const moment = Math.min(1000, from + Math.max(0, now - began) / 5); // a frame may be older than the click
    moveTo(moment);
    if (moment < 1000) playing = requestAnimationFrame(tick);
    else stopPlaying();
  };
  playing = requestAnimationFrame(tick);
}

function theme(change) {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = change ? (now === "dark" ? "light" : "dark") : now;
  if (change) {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("tta.theme", next);
    for (const panel of shown()) if (panel.text.dataset.kind === "draft" && panel.choice) moveTo(Number($("moment").value));
  }
  $("theme").textContent = next === "dark" ? "☀" : "☾";
}

if (localStorage.getItem("tta.theme")) document.documentElement.dataset.theme = localStorage.getItem("tta.theme");
$("model").replaceChildren(...options.models.map((one) => make("option", { value: one.name }, one.name)));
$("model").disabled = options.models.length < 2;
$("ramp").style.background = `linear-gradient(to right, ${[...Array(11).keys()].map((i) => heat(i / 10)).join(", ")})`;
$("ask").addEventListener("submit", (event) => { event.preventDefault(); write(); });
$("stop").addEventListener("click", () => running?.abort());
$("compare").addEventListener("change", compare);
$("model").addEventListener("change", choose);
$("theme").addEventListener("click", () => theme(true));
$("play").addEventListener("click", play);
$("moment").addEventListener("input", () => { stopPlaying(); moveTo(Number($("moment").value)); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("ask").requestSubmit(); }
  if (event.key === "Escape" && running) running.abort();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
theme(false);
choose();
layout();
$("prompt").focus();
document.body.dataset.ready = "yes";
