// Errors as one line at the place where they occurred, with a button for what the user can do.

import { element } from "./frame.js";

const COPIED = 1500; // milliseconds for which the button shows it

const WORDS = {
  gone: () => "The server does not answer.",
  broken: () => "The server stopped in the middle of the text.",
  key: () => "This server asks for a key.",
  refused: (message) => `The server refuses this: ${message}`,
  failed: (message) => `The server reports an error: ${message}`,
};

/**
 * The line for an error; `again()` repeats the failed action, `useKey(key)` takes the key that the user typed,
 * `fresh()` begins a new conversation.
 */
export function problemLine(error, { again, useKey, fresh, note = "" }) {
  if (error.code === "context_length_exceeded") return fullLine(tooLong(error), fresh);
  const words = element("span");
  const line = element("div", "problem", words);
  line.setAttribute("role", "alert");
  const say = (text) => (words.textContent = note ? `${text} ${note}` : text);
  if (error.kind === "busy") countDown(line, say, error.seconds, again);
  else say((WORDS[error.kind] ?? ((message) => `Something in this page failed: ${message}`))(error.message));
  if (error.kind === "key") line.append(keyField(useKey));
  if (["gone", "broken", "failed"].includes(error.kind)) line.append(button("Try again", again));
  return line;
}

/** The line under an answer that the server cut, which is no error. */
export function cutLine(cutBy) {
  const why = { timeout: "it took longer than the server allows", shutdown: "the server is stopping" }[cutBy] ?? cutBy;
  const line = element("div", "problem mild", `The text was cut here: ${why}.`);
  line.setAttribute("role", "alert");
  return line;
}

/** The line for a full context; `fresh()` begins a new conversation. */
export function fullLine(words, fresh) {
  const line = element("div", "problem mild", element("span", "", words), button("New conversation", fresh));
  line.setAttribute("role", "alert");
  return line;
}

function tooLong({ message, size }) {
  if (!size) return `This does not fit into the model's context: ${message}`;
  const [found, context] = size;
  return `This does not fit into the model's context of ${context} tokens: with all that was said it has ${found}. ` +
    "Begin a new conversation, or say less.";
}

/** A button that copies the result of `textOf`; none on a page loaded over plain HTTP from another machine. */
export function copyButton(textOf) {
  if (!navigator.clipboard) return "";
  const made = button("Copy", async () => {
    const isCopied = await navigator.clipboard.writeText(textOf()).then(() => true, () => false);
    made.textContent = isCopied ? "Copied" : "Not copied";
    setTimeout(() => (made.textContent = "Copy"), COPIED);
  });
  return made;
}

export function button(words, act) {
  const made = element("button", "small", words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function countDown(line, say, seconds, again) {
  const until = performance.now() + seconds * 1000;
  const retry = button("Try again", again);
  line.append(retry);
  const tick = () => {
    const left = Math.ceil((until - performance.now()) / 1000);
    retry.disabled = left > 0;
    say(left > 0 ? `The server is busy: try again in ${left} s.` : "The server was busy: try again now.");
    if (left > 0) setTimeout(() => line.isConnected && tick(), 250);
  };
  // The line is not yet in the document at the first tick, so this one does not check that.
  tick();
}

function keyField(useKey) {
  const field = element("input");
  field.type = "password";
  field.autocomplete = "off";
  field.placeholder = "key";
  field.setAttribute("aria-label", "Key");
  const use = button("Use it", () => field.value && useKey(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    use.click();
  });
  return element("span", "key", field, use);
}
