// One set of settings: controls as chips, length and keywords, policy, steps, and more behind a fold.
import { make } from "./dom.js";

let count = 0;

export class Settings {
  constructor(title) {
    this.id = ++count;
    this.title = make("h3", { textContent: title, hidden: true });
    this.groups = make("div", { className: "groups" });
    this.length = make("input", { type: "number", min: 1, placeholder: "any", inputMode: "numeric" });
    this.keywords = make("input", { placeholder: "boat, morning", maxLength: 300, autocomplete: "off" });
    this.policy = make("select", { onchange: () => this.explain() });
    this.exact = make("input", { placeholder: "adaptive:0.4+monotone", maxLength: 120, autocomplete: "off" });
    this.steps = make("input", { type: "range", min: 1, oninput: () => this.count() });
    this.shown = make("output");
    this.strength = make("input", { type: "number", min: 0, step: "any" });
    this.feedback = make("select", {}, ...["guided", "plain"].map((name) => make("option", { value: name }, name)));
    this.temperature = make("input", { type: "number", min: 0, max: 5, step: "any" });
    this.revise = make("input", {
      type: "number", min: 0, step: 1, title: "so many of the steps, the last ones, hide tokens in turns and write anew what does not fit",
    });
    this.about = make("p", { className: "about", id: `about-${this.id}` });
    this.policy.setAttribute("aria-describedby", this.about.id);
    this.feedbackLabel = make("label", {}, "feedback", this.feedback);
    this.more = make(
      "details", {}, make("summary", {}, "More settings"),
      make(
        "div", { className: "fields" },
        make("label", {}, "strength", this.strength), this.feedbackLabel,
        make("label", {}, "temperature", this.temperature), make("label", {}, "revise", this.revise),
        make("label", { className: "wide" }, "policy in full", this.exact),
      ),
    );
    this.more.addEventListener("invalid", () => { this.more.open = true; }, true); // nobody sees what is wrong in a fold
    this.node = make(
      "div", { className: "side" }, this.title, this.groups,
      make(
        "div", { className: "fields" },
        make("label", {}, "policy", this.policy),
        make("label", { className: "wide" }, "steps", this.steps, this.shown),
        make("label", {}, "length", this.length),
        make("label", { className: "wide" }, "keywords", this.keywords),
      ),
      this.about, this.more,
    );
  }

  // A model brings controls and defaults of its own.
  offer(options, model) {
    this.options = options;
    this.model = model;
    this.groups.replaceChildren(...Object.entries(model.controls).map(([name, labels]) => this.chips(name, labels)));
    const own = model.defaults.allocation.split(/[:@+]/)[0];
    const names = options.policies.map((one) => one.name).sort((a, b) => (b === own) - (a === own));
    this.policy.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    this.steps.max = Math.min(Math.max(200, model.defaults.steps), options.limits.steps);
    this.length.max = model.longest - 1;
    this.feedbackLabel.hidden = !model.feedback;
    this.write({});
  }

  chips(name, labels) {
    const chip = (value, text) => make(
      "label", { className: value ? "chip" : "chip any" },
      make("input", { type: "radio", name: `${name}-${this.id}`, value, checked: !value }),
      make("span", {}, text),
    );
    const group = make("fieldset", {}, make("legend", {}, name), chip("", "any"), ...labels.map((one) => chip(one, one)));
    group.dataset.control = name;
    return group;
  }

  count() { this.shown.textContent = this.steps.value; }

  explain() {
    const found = this.options.policies.find((one) => one.name === this.policy.value);
    this.about.textContent = found?.about ? `${found.name}: ${found.about}` : "";
  }

  // What differs from the model's own settings, as the fields of a request.
  read() {
    const own = this.model.defaults, asked = {}, control = [];
    for (const group of this.groups.children) {
      const chosen = group.querySelector("input:checked");
      if (chosen && chosen.value) control.push(`${group.dataset.control}=${chosen.value}`);
    }
    if (this.length.value) control.push(`length=${Number(this.length.value)}`);
    if (this.keywords.value.trim()) control.push(`keywords=${this.keywords.value.trim()}`);
    if (control.length) asked.control = control;
    const policy = this.exact.value.trim() || this.policy.value;
    if (policy !== own.allocation && policy !== own.allocation.split(/[:@+]/)[0]) asked.allocation = policy;
    if (Number(this.steps.value) !== own.steps) asked.steps = Number(this.steps.value);
    if (this.strength.value && Number(this.strength.value) !== own.strength) asked.strength = Number(this.strength.value);
    if (this.feedback.value !== own.feedback) asked.feedback = this.feedback.value;
    if (this.temperature.value && Number(this.temperature.value) !== own.temperature)
      asked.temperature = Number(this.temperature.value);
    if (this.revise.value && Number(this.revise.value) !== own.revise) asked.revise = Number(this.revise.value);
    return asked;
  }

  write(asked) {
    const own = this.model.defaults;
    const control = Object.fromEntries((asked.control || []).map((one) => {
      const at = one.indexOf("=");
      return [one.slice(0, at), one.slice(at + 1)];
    }));
    for (const group of this.groups.children)
      for (const radio of group.querySelectorAll("input"))
        radio.checked = radio.value === (control[group.dataset.control] || "");
    this.length.value = control.length || "";
    this.keywords.value = control.keywords || "";
    const policy = asked.allocation || own.allocation, plain = policy.split(/[:@+]/)[0];
    this.policy.value = plain;
    this.exact.value = policy === plain || policy === own.allocation ? "" : policy;
    this.steps.value = asked.steps || own.steps;
    this.strength.value = asked.strength ?? own.strength;
    this.feedback.value = asked.feedback || own.feedback;
    this.temperature.value = asked.temperature ?? own.temperature;
    this.revise.value = asked.revise ?? own.revise;
    this.count();
    this.explain();
  }
}
