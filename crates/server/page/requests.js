// Requests to the server and the chunks of its answers: the only file that knows the formats of OpenAI's chats and
// completions, and this server's additions (`speculative`, `return_provenance`).
//
// Chats and completions differ only here. All other files see *passes*: one pass of the model, with the text that it
// added, the tokens of that text, and all tokens that were drafted for it.

import { chunks } from "./stream.js";

/**
 * The address and body of the request that continues a dialogue.
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
  // A lossy server keeps the promises that are chosen here, and its lenience counts beside rejection alone.
  if (model.meta.lossy_lenience < 1 && settings.verify !== "rejection") body.speculative.lossy_lenience = 1;
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens; // else until the answer ends by itself
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
  // All tokens are shown, also those of the reasoning.
  body.reasoning_format = "none";
  body.messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const turn of dialogue.turns) {
    body.messages.push({ role: "user", content: turn.user }, { role: "assistant", content: turn.answer });
  }
  body.messages.push({ role: "user", content: dialogue.text });
  return { address: "v1/chat/completions", body };
}

/** The pass of a chunk; null if it adds nothing to the answer (roles, usage). */
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
 * Generates one answer: each pass goes to `onPass` as it arrives.
 *
 * Returns its end, `{finish, cutBy, timings}`. Throws as `chunks` does, after all earlier passes have gone to `onPass`.
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
