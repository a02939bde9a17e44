// The server's models, and the one in use. If there are several, the name in the header is a list to choose from. A
// model that is not loaded is loaded when it is chosen, since only then its properties are known.

import { element } from "./frame.js";
import { problemLine } from "./problem.js";
import { models, openModel } from "./stream.js";

const byId = (id) => document.getElementById(id);
const isClosed = ({ status }) => status?.value === "unloaded";

export class Models {
  #page;
  #known = [];

  constructor(page) {
    this.#page = page;
    byId("models").addEventListener("change", (event) => this.#page.choose(event.target.value));
  }

  /** The model of this name, or the first loaded one, or the first; null, with a line that says why, on failure. */
  async find(name, key) {
    const trouble = byId("trouble");
    trouble.replaceChildren();
    try {
      this.#known = await models(key);
      let model = this.#known.find(({ id }) => id === name);
      model ??= this.#known.find((model) => !isClosed(model)) ?? this.#known[0];
      if (model && isClosed(model)) model = await this.#open(model, key);
      this.draw(model);
      return model ? { ...model, meta: model.meta ?? { chat: true } } : null;
    } catch (error) {
      const [again, useKey] = [() => this.#page.open(name), (key) => this.#page.useKey(key)];
      trouble.replaceChildren(problemLine(error, { again, useKey }));
      trouble.querySelector("input, button")?.focus();
      return null;
    }
  }

  async #open(model, key) {
    const line = element("div", "problem mild", `The server loads ${model.id}. This may take a while.`);
    line.setAttribute("role", "status");
    byId("trouble").replaceChildren(line);
    this.draw(model);
    await openModel(model.id, key);
    this.#known = await models(key);
    byId("trouble").replaceChildren();
    return this.#known.find(({ id }) => id === model.id) ?? model;
  }

  /** Shows the names, with this one selected. */
  draw(chosen) {
    const words = (model) => (isClosed(model) ? `${model.id} (not loaded)` : model.id);
    byId("models").replaceChildren(...this.#known.map((model) => new Option(words(model), model.id)));
    byId("models").value = chosen?.id ?? "";
    byId("models").hidden = this.#known.length < 2;
    byId("model").textContent = chosen?.id ?? "";
  }
}
