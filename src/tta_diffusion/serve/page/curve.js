// p(target) of the draft at every step, one line a control.
import { make, svg } from "./dom.js";

export class Curve {
  constructor() {
    this.svg = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
    this.node = make(
      "div", { className: "curve", hidden: true },
      make("div", { className: "axis" }, make("span", {}, "1"), make("span", {}, "p"), make("span", {}, "0")),
      this.svg,
    );
  }

  draw(frames, step) {
    const names = frames.length ? Object.keys(frames[0].p) : [];
    this.node.hidden = !names.length;
    if (!names.length) return;
    const most = Math.max(1, frames[0].steps - 1), x = (i) => (100 * (frames[i].step - 1)) / most;
    const lines = names.map((name) => svg("path", {
      d: frames.map((frame, i) => `${i ? "L" : "M"}${x(i).toFixed(2)} ${(100 * (1 - frame.p[name])).toFixed(2)}`).join(""),
    }));
    const now = svg("line", { x1: x(step), x2: x(step), y1: 0, y2: 100 });
    this.svg.replaceChildren(now, ...lines);
    const said = names.map((name) => `p(${name}) ${frames[step].p[name].toFixed(2)}`).join(", ");
    this.svg.setAttribute("aria-label", `At step ${frames[step].step}: ${said}`);
  }
}
