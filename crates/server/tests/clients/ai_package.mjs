// Vercel's packages `ai` and `@ai-sdk/openai-compatible` against a server: SERVER and TOOLS, with the key KEY.
//
// What their users rely on: texts streamed and not, with their usage; structured outputs; tool calls and the turn after
// their results; and errors that name the field.

import assert from 'node:assert/strict';
import test from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';

const MODEL = 'demo-target';
const prompt = 'i want to find a restaurant in san jose';
const { SERVER, TOOLS, KEY } = process.env;

/** A model of the server at `address`. */
function model(address = SERVER, key = KEY) {
  const provider = { name: 'foretoken', baseURL: address + '/v1', apiKey: key };
  return createOpenAICompatible({ ...provider, includeUsage: true, supportsStructuredOutputs: true })(MODEL);
}

/** The options of one request without retries. */
const options = { model: model(), prompt, maxOutputTokens: 40, temperature: 0.9, seed: 7, maxRetries: 0 };

/** The server's response to the same request, without a package. */
async function chatWithoutPackage() {
  const messages = [{ role: 'user', content: prompt }];
  const body = JSON.stringify({ model: MODEL, messages, max_tokens: 40, temperature: 0.9, seed: 7 });
  const headers = { authorization: 'Bearer ' + KEY, 'content-type': 'application/json' };
  const answer = await fetch(SERVER + '/v1/chat/completions', { method: 'POST', headers, body });
  return answer.json();
}

test('a text', async () => {
  const [plain, answer] = [await chatWithoutPackage(), await generateText(options)];
  assert.equal(answer.text, plain.choices[0].message.content);
  assert.equal(answer.finishReason, plain.choices[0].finish_reason);
  assert.equal(answer.usage.outputTokens, plain.usage.completion_tokens);
  assert.equal(answer.usage.inputTokens, plain.usage.prompt_tokens);
});

test('a stream, with usage at its end', async () => {
  const [plain, stream, pieces] = [await chatWithoutPackage(), streamText(options), []];
  for await (const piece of stream.textStream) pieces.push(piece);
  assert.equal(pieces.join(''), plain.choices[0].message.content);
  assert.ok(pieces.length > 1);
  assert.equal((await stream.usage).outputTokens, plain.usage.completion_tokens);
  assert.equal(await stream.finishReason, plain.choices[0].finish_reason);
});

test('an object', async () => {
  const properties = { sea: { type: 'boolean' }, depth: { enum: [10, 200] } };
  const schema = jsonSchema({ type: 'object', properties, required: ['sea', 'depth'], additionalProperties: false });
  const { object } = await generateObject({ ...options, schema });
  assert.deepEqual(Object.keys(object).sort(), ['depth', 'sea']);
  assert.ok([10, 200].includes(object.depth) && typeof object.sea === 'boolean');
});

test('a tool call, and the turn after its result', async () => {
  const properties = { city: { enum: ['Rome', 'Oslo'] } };
  const inputSchema = jsonSchema({ type: 'object', properties, required: ['city'], additionalProperties: false });
  const tools = { find: tool({ description: 'finds a place', inputSchema, execute: ({ city }) => 'sun in ' + city }) };
  const forced = { ...options, model: model(TOOLS), maxOutputTokens: 100, tools, toolChoice: 'required' };
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? 'auto' : 'required' });
  const { steps } = await generateText({ ...forced, stopWhen: stepCountIs(2), prepareStep });
  assert.equal(steps.length, 2);
  const [call, ...others] = steps[0].toolCalls;
  assert.ok(others.length === 0 && call.toolName === 'find' && ['Rome', 'Oslo'].includes(call.input.city));
  assert.equal(steps[0].toolResults[0].output, 'sun in ' + call.input.city);
  assert.equal(steps[0].finishReason, 'tool-calls');
  assert.ok(steps[1].usage.inputTokens > steps[0].usage.inputTokens);
  const stream = streamText(forced);
  await stream.consumeStream();
  assert.deepEqual((await stream.toolCalls).map(({ input }) => input), [call.input]);
  assert.equal(await stream.text, '');
});

test('errors', async () => {
  const refused = (more, status, start) =>
    assert.rejects(generateText({ ...options, ...more }), (error) => {
      assert.ok(APICallError.isInstance(error), error);
      assert.equal(error.statusCode, status);
      assert.ok(error.message.startsWith(start), error.message);
      return true;
    });
  await refused({ topP: 2 }, 400, 'top_p: expected');
  await refused({ model: model(SERVER, 'wrong') }, 401, 'Authorization: expected');
});
