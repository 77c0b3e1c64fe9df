// What was written before, kept in this browser alone.
import { $, make } from "./dom.js";

const KEY = "tta.history", MOST = 40;

function load() {
  try { return JSON.parse(localStorage.getItem(KEY)) || []; } catch { return []; }
}

function save(entries) {
  try { localStorage.setItem(KEY, JSON.stringify(entries)); } catch { /* full, or forbidden: then not */ }
}

export class Past {
  constructor(onOpen) {
    this.onOpen = onOpen;
    $("forget").addEventListener("click", () => { save([]); this.show(); });
    this.show();
  }

  // An entry has all that brings a text back: model, path, body, choice.
  add(entry) {
    const key = ({ path, body, model }) => JSON.stringify([path, body, model]);
    save([entry, ...load().filter((one) => key(one) !== key(entry))].slice(0, MOST));
    this.show();
  }

  show() {
    const entries = load();
    $("past").hidden = !entries.length;
    $("entries").replaceChildren(...entries.map((entry) => {
      const asked = [...(entry.body.control || []), entry.body.allocation, entry.path === "/v1/rewrite" ? "rewritten" : ""];
      const line = [...asked.filter(Boolean), `seed ${entry.body.seed}`].join(" · ");
      const open = make(
        "button", { type: "button", onclick: () => this.onOpen(entry) },
        make("span", {}, entry.choice.full_text || "(empty)"), make("small", {}, line),
      );
      return make("li", {}, open);
    }));
  }
}
