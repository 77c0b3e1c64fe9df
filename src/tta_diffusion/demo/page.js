"use strict";
// Draws every trajectory of the page from the JSON inside it. One slider moves both texts of a case.
const data = JSON.parse(document.getElementById("data").textContent);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const GIVEN = 1, KEY = 2, CHANGED = 4, ROW = 15;

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const level = (run, step, i) => run.steps[step][1].charCodeAt(i) - 97;
const mark = (run, step, i) => Number(run.steps[step][2][i]);
const word = (run, step, i) => run.words[run.steps[step][0][i]];
const colour = (value, strength) => `rgb(${data.heat[value].join(" ")} / ${strength})`;

function showDraft(box, run, step) {
  const tokens = run.steps[step][0].map((_, i) => {
    const marks = mark(run, step, i), text = word(run, step, i), bare = text.trimStart();
    const token = make("i", "", bare);
    if (marks & GIVEN) token.classList.add("given");
    else token.style.background = colour(level(run, step, i), 0.36);
    if (marks & KEY) token.classList.add("key");
    if (marks & CHANGED) token.classList.add("changed");
    // The space stands outside the token, so that no mark covers it.
    return [text.slice(0, text.length - bare.length), token];
  });
  box.replaceChildren(...tokens.flat());
  if (!tokens.length) box.append(make("span", "empty", "empty"));
}

function drawMap(canvas, run) {
  const last = run.steps.length - 1, rows = run.steps[last][0].length;
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = rows * ROW;
  if (!width) return;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d"), cell = width / (last + 1);
  pen.scale(ratio, ratio);
  for (let step = 0; step <= last; step++) {
    const present = Math.min(rows, run.steps[step][0].length);
    for (let i = 0; i < present; i++) {
      const marks = mark(run, step, i), x = step * cell, y = i * ROW;
      pen.fillStyle = colour(level(run, step, i), marks & GIVEN ? 0.35 : 1);
      pen.fillRect(x, y + 0.5, cell + 0.4, ROW - 1);
      if (marks & CHANGED) {
        pen.fillStyle = "#14181c";
        pen.fillRect(x, y + 2, Math.min(1.6, cell / 3), ROW - 4);
      }
      if (marks & KEY) {
        pen.fillStyle = "#fff";
        pen.beginPath();
        pen.arc(x + cell / 2, y + ROW / 2, Math.max(1, Math.min(2.6, cell / 2 - 0.5)), 0, 7);
        pen.fill();
      }
    }
  }
}

function curvePath(values, height) {
  // A value stands in the middle of its step's column, as in the map below.
  return values.map((p, i) => `${i ? "L" : "M"}${i + 0.5} ${(1 - p) * height}`).join("");
}

function drawCurves(run) {
  const plot = make("div", "plot"), axis = make("div", "axis"), field = make("div", "field");
  const label = run.curves.map((curve) => `p(${curve.label})`).join(", ");
  for (const text of ["1", label, "0"]) axis.append(make("span", "", text));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 -2 ${run.steps.length} 104`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${label} of the draft at every step`);
  for (const curve of run.curves) {
    for (const when of ["before", "after"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", curvePath(curve[when], 100));
      path.setAttribute("class", when);
      svg.append(path);
    }
  }
  field.append(svg);
  plot.append(axis, field);
  return [plot, field];
}

function drawPanel(run, moveTo) {
  const panel = make("div"), head = make("h3", "", run.name), score = make("span");
  const box = make("p", "draft"), rows = make("div", "plot rows"), labels = make("div"), field = make("div", "field");
  const canvas = make("canvas"), read = make("p", "read"), last = run.steps.length - 1;
  head.append(score);
  panel.append(head, box);
  const fields = [field];
  if (run.curves.length) {
    const [plot, above] = drawCurves(run);
    panel.append(plot);
    fields.push(above);
  }
  run.steps[last][0].forEach((_, i) => {
    const name = make("div", "word", word(run, last, i).trim());
    if (mark(run, last, i) & GIVEN) name.classList.add("given");
    labels.append(name);
  });
  canvas.style.height = `${labels.childElementCount * ROW}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Map of the trajectory: one row a token, one column a step");
  field.append(canvas);
  rows.append(labels, field, read);
  panel.append(rows);
  const cursors = fields.map((one) => {
    const cursor = make("div", "cursor");
    cursor.style.width = `${100 / (last + 1)}%`;
    one.append(cursor);
    return cursor;
  });
  new ResizeObserver(() => drawMap(canvas, run)).observe(field);
  const place = (event) => {
    const area = canvas.getBoundingClientRect();
    const step = Math.floor(((event.clientX - area.left) / area.width) * (last + 1));
    return [Math.min(last, Math.max(0, step)), Math.floor((event.clientY - area.top) / ROW)];
  };
  canvas.addEventListener("click", (event) => moveTo(place(event)[0]));
  canvas.addEventListener("pointermove", (event) => {
    const [step, i] = place(event);
    const there = i >= 0 && i < run.steps[step][0].length;
    read.textContent = there
      ? `step ${step + 1}: “${word(run, step, i).trim()}”, time ${(level(run, step, i) / data.levels).toFixed(2)}`
      : `step ${step + 1}: the draft ends before this token`;
  });
  const show = (wanted) => {
    const step = Math.min(wanted, last);
    showDraft(box, run, step);
    const scores = run.curves.map((curve) => `p(${curve.label}) = ${curve.after[step].toFixed(2)}`);
    if (run.forgot) scores.push(run.forgot);
    score.textContent = scores.join(" · ");
    for (const cursor of cursors) cursor.style.left = `${(100 * step) / (last + 1)}%`;
  };
  // How high the longest draft is.
  const measure = () => {
    box.style.minHeight = "";
    const longest = run.steps.reduce((best, step, i) => (step[0].length > run.steps[best][0].length ? i : best), last);
    showDraft(box, run, longest);
    return box.offsetHeight;
  };
  const reserve = (height) => { box.style.minHeight = `${height}px`; };
  return { panel, show, measure, reserve };
}

function drawCase(section, runs) {
  const steps = Math.max(...runs.map((run) => run.steps.length));
  const bar = make("div", "bar"), button = make("button"), slider = make("input"), where = make("output");
  slider.type = "range";
  slider.min = 1;
  slider.max = steps;
  slider.setAttribute("aria-label", "step");
  button.type = "button";
  bar.append(button, slider, where);
  const pair = make("div", "pair");
  let timer = null;
  const panels = runs.map((run) => drawPanel(run, (step) => { stop(); moveTo(step); }));
  pair.append(...panels.map((one) => one.panel));
  section.append(bar, pair);

  function moveTo(step) {
    slider.value = step + 1;
    const longest = runs.find((run) => run.steps.length === steps);
    where.textContent = `step ${step + 1} of ${steps}, u = ${longest.u[step].toFixed(2)}`;
    for (const one of panels) one.show(step);
  }
  function name() {
    button.textContent = timer !== null ? "❚❚ Pause" : calm.matches ? "Next step" : "▶ Play";
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    name();
  }
  button.addEventListener("click", () => {
    const now = Number(slider.value) - 1;
    if (timer !== null) return stop();
    if (calm.matches) return moveTo((now + 1) % steps);
    moveTo(now >= steps - 1 ? 0 : now);
    timer = setInterval(() => {
      const next = Number(slider.value);
      if (next < steps) moveTo(next);
      if (next >= steps - 1) stop();
    }, Math.min(250, Math.max(50, 6000 / steps)));
    name();
  });
  slider.addEventListener("input", () => { stop(); moveTo(Number(slider.value) - 1); });
  calm.addEventListener("change", stop);
  // One height for all drafts of a case: the page must not jump while it plays, and the plots stand side by side.
  const settle = () => {
    const height = Math.max(...panels.map((one) => one.measure()));
    for (const one of panels) one.reserve(height);
    moveTo(Number(slider.value) - 1);
  };
  let width = 0;
  new ResizeObserver(() => {
    if (pair.clientWidth !== width) { width = pair.clientWidth; settle(); }
  }).observe(pair);
  slider.value = steps;
  name();
}

data.cases.forEach((runs, i) => drawCase(document.getElementById(`case-${i}`), runs));
