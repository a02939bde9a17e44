// The settings: drafters, promise, temperature, seed, lengths and the form of the answer. The list of drafters is also
// the legend of the colours.
//
// The form in index.html is the state; between visits only the choice of Markdown is stored (app.js). Anything missing
// in the model's `meta` (on other servers) gets the simplest default.

import { element } from "./frame.js";

const byId = (id) => document.getElementById(id);

export class Settings {
  #palette;
  #boxes = new Map();
  #counts = new Map();

  constructor(palette) {
    this.#palette = palette;
    byId("drafters").addEventListener("change", () => this.#choose("chosen"));
    for (const radio of document.getElementsByName("type")) {
      radio.addEventListener("change", () => this.#follow());
    }
    byId("temperature").addEventListener("input", () => this.#showTemperature());
    byId("seed").addEventListener("input", () => (byId("locked").checked = byId("seed").value !== ""));
    for (const radio of document.getElementsByName("form")) radio.addEventListener("change", () => this.#followForm());
    byId("schema").addEventListener("input", () => this.#followForm());
    this.newSeed();
  }

  /** Shows the drafters and defaults of this model. */
  open(meta) {
    this.auto = meta.auto ?? [];
    const rows = [this.#row("target", false)];
    for (const name of meta.drafters ?? []) rows.push(this.#row(name, true));
    byId("drafters").replaceChildren(...rows);
    const type = meta.spec_type ?? "none";
    const known = type === "auto" || type === "none";
    for (const name of known ? [] : type.split(/[+,]/)) {
      if (this.#boxes.has(name)) this.#boxes.get(name).checked = true;
    }
    this.#choose(known ? type : "chosen");
    const promise = document.querySelector(`[name=verify][value="${CSS.escape(meta.verify ?? "exact")}"]`);
    if (promise) promise.checked = true;
    byId("temperature").value = meta.defaults?.temperature ?? 0.8;
    this.#showTemperature();
    const { top_k, top_p, min_p } = meta.defaults ?? {};
    const others = Object.entries({ "top-k": top_k, "top-p": top_p, "min-p": min_p });
    const values = others.filter(([, value]) => value !== undefined).map(([name, value]) => `${name} ${value}`);
    byId("defaults").textContent = values.length > 0 ? `with ${values.join(", ")}` : "";
    byId("system-part").hidden = !meta.chat;
  }

  #row(name, drafter) {
    const sample = element("span", `o${this.#palette.of(name)}`, element("u", "", drafter ? name : "the model itself"));
    const number = element("span", "number", "0");
    this.#counts.set(name, number);
    if (!drafter) return element("div", "who", element("span", "no-box"), sample, number);
    const box = element("input");
    box.type = "checkbox";
    box.value = name;
    box.setAttribute("aria-label", name); // without the count beside it
    this.#boxes.set(name, box);
    return element("label", "who", box, sample, number);
  }

  #choose(type) {
    document.querySelector(`[name=type][value="${type}"]`).checked = true;
    this.#follow();
  }

  /** Sets the boxes to the drafters of the chosen method. */
  #follow() {
    const type = this.#type();
    if (type !== "chosen") {
      for (const [name, box] of this.#boxes) box.checked = type === "auto" && this.auto.includes(name);
    }
    byId("prediction-part").hidden = !this.#boxes.get("prediction")?.checked;
  }

  #type() {
    return document.querySelector("[name=type]:checked").value;
  }

  #form() {
    return document.querySelector("[name=form]:checked").value;
  }

  /** Shows the field for a schema if it is needed, and the errors in the schema. */
  #followForm() {
    byId("schema-part").hidden = this.#form() !== "schema";
    this.#showFormProblem(this.#form() === "schema" ? schema().problem : null);
  }

  #showFormProblem(problem) {
    byId("form-problem").textContent = problem ?? "";
    byId("form-problem").hidden = problem === null;
    byId("schema").setAttribute("aria-invalid", String(problem !== null));
  }

  /** Whether the form of the answer is valid; else shows the reason. */
  formIsGood() {
    this.#followForm();
    if (this.#form() !== "schema" || schema().problem === null) return true;
    return false;
  }

  /** Shows the server's error beside the form of the answer, if it concerns that. */
  showRefusal(error) {
    if (error.param?.startsWith("response_format")) this.#showFormProblem(error.message);
  }

  #showTemperature() {
    byId("temperature-shown").textContent = Number(byId("temperature").value).toFixed(2);
  }

  /** A fresh seed, unless it is locked. */
  newSeed() {
    if (byId("locked").checked && byId("seed").value !== "") return;
    byId("seed").value = crypto.getRandomValues(new Uint32Array(1))[0];
  }

  get seed() {
    return whole("seed") ?? 0;
  }

  /** The current settings. */
  read() {
    const ticked = [...this.#boxes].filter(([, box]) => box.checked).map(([name]) => name);
    const prediction = ticked.includes("prediction") ? byId("prediction").value : "";
    const chosen = ticked.filter((name) => name !== "prediction" || prediction !== "");
    const type = this.#type() === "chosen" ? chosen.join("+") || "none" : this.#type();
    return {
      type,
      verify: document.querySelector("[name=verify]:checked").value,
      temperature: Number(byId("temperature").value),
      maxTokens: whole("max-tokens") || null,
      nMax: whole("n-max"),
      endless: byId("endless").checked,
      form: this.#form() === "schema" ? { type: "json_schema", schema: schema().value } : { type: this.#form() },
      system: byId("system").value.trim(),
      prediction,
    };
  }

  get rejectedShown() {
    return byId("rejected").checked;
  }

  get markdownShown() {
    return byId("markdown").checked;
  }

  /** Shows the number of tokens beside each origin. */
  showCounts(byOrigin) {
    for (const name of byOrigin.keys()) {
      if (!this.#counts.has(name)) byId("drafters").append(this.#row(name, true));
    }
    for (const [name, number] of this.#counts) {
      const tokens = byOrigin.get(name) ?? 0;
      number.textContent = String(tokens);
      number.parentElement.classList.toggle("idle", tokens === 0);
    }
  }
}

/** The schema in the field as a value, or the problem with it. */
function schema() {
  try {
    const value = JSON.parse(byId("schema").value);
    const isSchema = value !== null && typeof value === "object" && !Array.isArray(value);
    return { value, problem: isSchema ? null : "Schema: expected a JSON object, found something else." };
  } catch (error) {
    return { value: null, problem: `Schema: expected JSON, found an error: ${error.message}` };
  }
}

/** The whole number in a field; null if there is none. */
function whole(id) {
  const number = Number.parseInt(byId(id).value, 10);
  return Number.isFinite(number) && number >= 0 ? number : null;
}
