// What is asked of the server, and what a chunk of its answer means: the one place that knows the shape of OpenAI's
// two ways to write a text and this server's additions (`speculative`, `return_provenance`).
//
// The idea: chat and plain texts differ here and nowhere else. Everything after this file sees *passes*: one pass of
// the model, with the text it added, the tokens of that text, and all tokens that were drafted for it.

import { chunks } from "./stream.js";

/**
 * The address and body that go on with a dialogue.
 *
 * `dialogue` is `{turns: [{user, answer}], text}`; a model without a chat template reads it as one running text.
 */
export function requestFor(model, dialogue, settings, seed) {
  const body = {
    model: model.id,
    stream: true,
    stream_options: { include_usage: true },
    return_provenance: true,
    temperature: settings.temperature,
    seed,
    speculative: { type: settings.type, verify: settings.verify },
  };
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens; // else until the text ends
  if (settings.cacheSalt) body.cache_salt = settings.cacheSalt;
  if (settings.nMax !== null && settings.type !== "none") body.speculative.n_max = settings.nMax;
  if (settings.endless) body.ignore_eos = true;
  if (settings.form?.type === "json") body.response_format = { type: "json_object" };
  if (settings.form?.type === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: settings.form.schema } };
  }
  if (settings.prediction) body.prediction = { type: "content", content: settings.prediction };
  if (!model.meta.chat) {
    body.prompt = dialogue.turns.map((turn) => turn.user + turn.answer).join("") + dialogue.text;
    return { address: "v1/completions", body };
  }
  // Each token is shown as it is, thoughts among them.
  body.reasoning_format = "none";
  body.messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const turn of dialogue.turns) {
    body.messages.push({ role: "user", content: turn.user }, { role: "assistant", content: turn.answer });
  }
  body.messages.push({ role: "user", content: dialogue.text });
  return { address: "v1/chat/completions", body };
}

/** What a chunk says, in the page's words; null where it adds nothing to the text (roles, usage). */
export function passOf(chunk) {
  const choice = chunk.choices?.[0];
  if (!choice) return null;
  const pass = {
    text: choice.delta?.content ?? choice.text ?? "",
    tokens: choice.provenance ?? [],
    drafted: choice.drafted ?? [],
    finish: choice.finish_reason ?? null,
    cutBy: choice.cut_by ?? chunk.cut_by ?? null,
    timings: chunk.timings ?? null,
  };
  return pass.text || pass.tokens.length || pass.drafted.length || pass.finish || pass.cutBy ? pass : null;
}

/**
 * Writes one text: each pass goes to `onPass` as it comes.
 *
 * Returns how it ended, `{finish, cutBy, timings}`. Throws as `chunks` does; what came before has then gone to
 * `onPass`.
 */
export async function write(request, access, onPass) {
  let end = { finish: null, cutBy: null, timings: null };
  for await (const chunk of chunks(request.address, request.body, access)) {
    const pass = passOf(chunk);
    if (!pass) continue;
    if (pass.finish || pass.cutBy) end = { finish: pass.finish, cutBy: pass.cutBy, timings: pass.timings };
    onPass(pass);
  }
  return end;
}
