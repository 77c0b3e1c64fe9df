// One text: its drafts while they settle, then the finished words, which can be kept.
import { calm, copy, make } from "./dom.js";
import { Curve } from "./curve.js";
import { heat } from "./heat.js";

const INVITATION = "Write something, and watch it settle.";

export class Panel {
  // actions: rewrite(panel), snippet(panel, kind).
  constructor(actions) {
    this.frames = [];
    this.kept = new Set();
    this.progress = make("i");
    this.bar = make("div", { className: "bar", role: "progressbar", ariaLabel: "Steps", ariaValueMin: 0 }, this.progress);
    this.named = make("p", { className: "named" });
    this.text = make("p", { className: "text empty", textContent: INVITATION });
    this.curve = new Curve();
    this.facts = make("p", { className: "facts" });
    this.picture = make("img", { className: "molecule", hidden: true, alt: "" });
    this.much = make("output", {}, "0.40");
    this.time = make("input", {
      type: "range", min: 0.2, max: 1, step: 0.05, value: 0.4, ariaLabel: "How much may change, from 0 to 1",
      oninput: () => { this.much.textContent = Number(this.time.value).toFixed(2); },
    });
    this.again = make("button", { type: "button", className: "ghost", onclick: () => actions.rewrite(this) });
    this.clear = make("button", { type: "button", className: "ghost", onclick: () => this.keep(null) }, "Clear");
    this.hint = make("span");
    this.keeping = make(
      "div", { className: "keep", hidden: true },
      this.hint, make("label", {}, "change", this.time, this.much), this.again, this.clear,
    );
    const copies = { text: "text", command: "command", python: "Python", curl: "curl" };
    this.copies = make(
      "div", { className: "copies", hidden: true }, "Copy as",
      ...Object.entries(copies).map(([kind, name]) => make(
        "button", { type: "button", className: "ghost", onclick: () => copy(actions.snippet(this, kind)) }, name,
      )),
    );
    this.node = make(
      "article", { className: "panel" }, this.bar,
      make("div", { className: "inside" }, this.named, this.text, this.picture, this.curve.node, this.facts, this.keeping, this.copies),
    );
    this.text.addEventListener("keydown", (event) => this.walk(event));
    this.hinting();
  }

  // `run` is what writes the text; an old one has none.
  begin(name, run = null) {
    Object.assign(this, { frames: [], choice: null, request: null, run, began: performance.now() });
    this.named.textContent = name;
    this.text.className = "text empty";
    this.text.textContent = "Waiting for its turn …";
    this.facts.textContent = "";
    this.picture.hidden = this.keeping.hidden = this.copies.hidden = true;
    this.curve.draw([], 0);
    this.advance(0, 1);
    this.node.setAttribute("aria-busy", "true");
  }

  draft(frame) {
    this.frames.push(frame);
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      if (!this.choice && this.frames.length) this.show(this.frames.length - 1);
    });
  }

  finish(choice, request) {
    Object.assign(this, { choice, request });
    this.kept.clear();
    this.node.removeAttribute("aria-busy");
    this.copies.hidden = this.keeping.hidden = false;
    this.end();
  }

  fail() {
    this.node.removeAttribute("aria-busy");
    if (!this.choice && !this.frames.length) this.text.textContent = "Stopped.";
  }

  advance(step, steps) {
    this.progress.style.width = `${(100 * step) / steps}%`;
    this.bar.ariaValueMax = steps;
    this.bar.ariaValueNow = step;
  }

  // The draft of one step.
  show(at) {
    const frame = this.frames[at], before = at ? this.frames[at - 1] : null;
    if (this.text.dataset.kind !== "draft") this.text.replaceChildren();
    this.text.className = "text";
    this.text.dataset.kind = "draft";
    const wash = Number(getComputedStyle(this.text).getPropertyValue("--wash"));
    const spans = this.text.children, given = new Set(frame.given), keys = new Set(frame.keys);
    frame.tokens.forEach((token, i) => {
      const slot = spans[i] || this.text.appendChild(make("span", {}, " ", make("span", { className: "t" })));
      const bare = token.trimStart(), inner = slot.lastElementChild;
      slot.firstChild.data = token.slice(0, token.length - bare.length); // the space stands outside the colour
      if (inner.textContent !== bare) {
        inner.textContent = bare;
        if (before && !calm()) inner.animate([{ opacity: 0.25 }, { opacity: 1 }], { duration: 260, easing: "ease-out" });
      }
      inner.className = `t${given.has(i) ? " given" : ""}${keys.has(i) ? " key" : ""}`;
      inner.style.background = given.has(i) ? "" : heat(frame.times[i], wash);
    });
    while (spans.length > frame.tokens.length) spans[spans.length - 1].remove();
    this.advance(frame.step, frame.steps);
    this.curve.draw(this.frames, at);
    this.tell(frame.p, [`step ${frame.step} of ${frame.steps}`, `u = ${frame.u.toFixed(2)}`]);
  }

  // The finished text: every word is a button that keeps it.
  end() {
    const last = this.frames.at(-1), pieces = this.choice.pieces;
    const alike = last && last.tokens.length === pieces.length;
    const first = pieces.findIndex((piece) => piece.trim());
    this.text.className = pieces.length ? "text" : "text empty";
    this.text.dataset.kind = "end";
    if (!pieces.length) this.text.textContent = "(empty)";
    else this.text.replaceChildren(...pieces.flatMap((piece, i) => {
      const bare = piece.trimStart(), marks = ["t"];
      if (alike && last.given.includes(i)) marks.push("given");
      if (alike && last.keys.includes(i)) marks.push("key");
      const button = make("button", { type: "button", className: marks.join(" "), tabIndex: i === first ? 0 : -1, onclick: () => this.keep(i) }, bare);
      button.hidden = !bare; // a space, or a further token of a character
      button.ariaPressed = "false";
      return [piece.slice(0, piece.length - bare.length), button];
    }));
    for (const i of this.kept) this.text.children[i].ariaPressed = "true";
    if (last) this.advance(last.steps, last.steps);
    if (last) this.curve.draw(this.frames, this.frames.length - 1);
    const molecule = this.choice.molecule, more = [`${this.choice.steps} steps`, `seed ${this.choice.seed}`];
    if (this.seconds) more.push(`${this.seconds.toFixed(1)} s`);
    if (molecule) more.push(molecule.valid ? `QED ${molecule.qed.toFixed(2)}, ${molecule.rings} rings` : "no valid molecule");
    this.picture.hidden = !molecule?.svg;
    if (molecule?.svg) this.picture.src = `data:image/svg+xml,${encodeURIComponent(molecule.svg.replaceAll("currentColor", "black"))}`;
    this.tell(this.choice.p, more);
    this.hinting();
  }

  tell(p, more) {
    const chances = Object.entries(p || {}).map(([name, value]) => `p(${name.split("=")[1]}) = ${value.toFixed(2)}`);
    this.facts.replaceChildren(...[...chances, ...more].map((one) => make("span", {}, one)));
  }

  keep(i) {
    if (i === null) this.kept.clear();
    else if (!this.kept.delete(i)) this.kept.add(i);
    [...this.text.children].forEach((word, at) => { word.ariaPressed = String(this.kept.has(at)); });
    this.hinting();
  }

  hinting() {
    const n = this.kept.size;
    this.hint.textContent = n ? `${n} ${n === 1 ? "word" : "words"} kept` : "Click words to keep them";
    this.again.textContent = n ? "Rewrite the rest" : "Rewrite";
    this.clear.hidden = !n;
  }

  // Kept words as [start, end) in characters, and a time for every token; an empty piece is a further token of the
  // character before it, and shares its time.
  spans() {
    const keep = [], time = Number(this.time.value);
    let at = 0, kept = false;
    const times = this.choice.pieces.map((piece, i) => {
      const start = at + ([...piece].length - [...piece.trimStart()].length);
      at += [...piece].length;
      if (piece) kept = this.kept.has(i);
      if (piece && kept) keep.push([start, at]);
      return kept ? 0 : time;
    });
    return { keep, time, times };
  }

  walk(event) {
    const words = [...this.text.querySelectorAll("button.t:not([hidden])")], at = words.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: words.length - 1 }[event.key];
    if (at < 0 || to === undefined || !words[to]) return;
    event.preventDefault();
    words[at].tabIndex = -1;
    words[to].tabIndex = 0;
    words[to].focus();
  }
}
